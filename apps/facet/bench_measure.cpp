#include "bench_measure.h"

#include <algorithm>
#include <set>

#include "bench_profile.h"
#include "facet/base/log.h"
#include "facet/base/text.h"
#include "facet/measure/percentiles.h"
#include "memory_limit.h"

namespace facet::cli {
namespace {

void check_finished(Engine& engine) {
  for (const RequestResult& result : engine.take_finished()) {
    if (result.finish_reason == FinishReason::error)
      throw_error(ErrorKind::run, "sequence {} failed: {}", result.id, result.error);
  }
}

}  // namespace

Bench::Bench(const BenchOptions& options, std::unique_ptr<gemma4::Pipeline> pipeline, const GlobalOptions& global)
    : options_(options), pipeline_(std::move(pipeline)), random_(options.seed) {
  check_shapes();
  check_memory_limit(*pipeline_, global);
  say_phase("bench: read rate of the memory");
  measure_rates();
  say_phase(fmt::format("bench: loading {}", pipeline_->shared()->source->description()));
  load_weights(*pipeline_, global);
}

std::vector<BenchShape> Bench::shapes() const {
  std::vector<BenchShape> shapes;
  for (const std::int64_t batch : options_.batch) {
    for (const std::int64_t prompt : options_.prompt_tokens) {
      for (const std::int64_t generate : options_.generate) shapes.push_back({prompt, generate, batch});
    }
  }
  return shapes;
}

BenchSamples Bench::measure(const BenchShape& shape) {
  BenchSamples samples;
  // The first pass touches memory that nothing has touched before and is not counted.
  for (std::int64_t pass = 0; pass <= options_.repeat; ++pass) {
    BenchSamples one;
    prefill(shape, one);
    if (shape.generate > 1) decode(shape, one);
    if (pass == 0) continue;
    for (const auto& [name, values] : one) samples[name].insert(samples[name].end(), values.begin(), values.end());
  }
  if (shape.generate > 1 && !on_cpu()) time_gaps(shape, samples);
  return samples;
}

Json Bench::profile(const BenchShape& shape) {
  const auto median_of = [](const std::vector<double>& values) { return values.empty() ? 0.0 : median(values); };
  const DeviceRates rates{median_of(read_rates_), median_of(multiply_rates_)};
  const auto costs = [&](const gemma4::StepWork& work) { return gemma4::part_costs(pipeline_->plan(), work); };
  const auto engine = pipeline_->make_engine();
  submit(*engine, shape, 1);
  const std::vector<KernelTime> first = backend().trace([&] { engine->run(); });
  check_finished(*engine);
  Json prefill_profile = profile_json(
      first, 1, costs({shape.batch, 0, shape.prompt, std::max<std::int64_t>(1, engine->metrics().steps)}), rates);
  Json decode_profile = nullptr;
  if (shape.generate > 1) {
    const std::unique_ptr<Engine> decoding = start_decode(shape);
    const std::vector<KernelTime> kernels = backend().trace([&] { decoding->run(); });
    decode_profile = profile_json(kernels, decoding->metrics().decode_steps,
                                  costs({shape.batch, shape.prompt + shape.generate / 2, 1, 1}), rates);
    check_finished(*decoding);
  }
  return {{"prefill", std::move(prefill_profile)}, {"decode", std::move(decode_profile)}};
}

std::uint64_t Bench::read_rate_bytes() const {
  // Several times any last-level cache of a desktop, and large against one of a server's slice. A GPU reads 4 GiB in a
  // millisecond, against which the few microseconds of a launch are nothing.
  return std::uint64_t{1} << (on_cpu() ? 29 : 32);
}

// Before weights lie in the memory: what is read would come on top of them.
void Bench::measure_rates() {
  try {
    read_rates_ = backend().read_rates(read_rate_bytes(), options_.repeat);
    multiply_rates_ = backend().multiply_rates(options_.repeat);
  } catch (const Error& error) {
    log(LogLevel::warn, "the rates of the device are not measured: {}", error.full_text());
  }
}

std::uint64_t Bench::weight_bytes(std::int64_t rows) const {
  std::uint64_t bytes = 0;
  for (const LinearGroup* group : pipeline_->plan().linears()) {
    for (const LinearModule& module : group->modules()) bytes += gemma4::weight_bytes(module, rows);
  }
  return bytes;
}

// Before anything is loaded.
void Bench::check_shapes() const {
  const std::int64_t room = pipeline_->plan().kv().max_sequence_tokens();
  const std::int64_t sequences = pipeline_->config().engine.max_sequences;
  Problems problems;
  if (options_.profile && on_cpu())
    problems.add(
        "--profile traces kernels of a GPU, engine.device is cpu here; times by plugin are in 'facet run --json'");
  std::set<std::int64_t> named;
  for (const BenchShape& shape : shapes()) {
    if (shape.batch > sequences && named.insert(shape.batch).second)
      problems.add("--batch {} is more than engine.max_sequences {}; measure fewer at a time or raise it", shape.batch,
                   sequences);
    if (shape.prompt + shape.generate - 1 > room && shape.batch == options_.batch.front()) {
      problems.add(
          "--prompt-tokens {} and --generate {} need {} KV rows; a sequence can hold {}: ask for fewer tokens or raise "
          "engine.max_context",
          shape.prompt, shape.generate, shape.prompt + shape.generate - 1, room);
    }
  }
  problems.throw_if_any(ErrorKind::usage, fmt::format("{}: cannot be measured:", pipeline_->config().file.string()));
}

void Bench::submit(Engine& engine, const BenchShape& shape, std::int64_t generate) {
  const auto vocabulary = static_cast<std::uint64_t>(pipeline_->plan().facts().model.vocabulary);
  ++salt_;
  for (std::int64_t sequence = 0; sequence < shape.batch; ++sequence) {
    Request request;
    request.salt = salt_;
    request.max_tokens = generate;
    for (std::int64_t i = 0; i < shape.prompt; ++i)
      request.prompt.push_back(static_cast<std::int32_t>(random_() % vocabulary));
    engine.submit(std::move(request));
  }
  engine.restart_clock();
}

// One token each: the time until every prompt is computed.
void Bench::prefill(const BenchShape& shape, BenchSamples& samples) {
  const auto engine = pipeline_->make_engine();
  submit(*engine, shape, 1);
  engine->run();
  const double seconds = static_cast<double>(std::max<std::int64_t>(engine->now_us(), 1)) / 1e6;
  check_finished(*engine);
  samples["prefill_ms"].push_back(seconds * 1e3);
  samples["prefill_tokens_per_second"].push_back(static_cast<double>(shape.batch * shape.prompt) / seconds);
}

// At the moment at which every sequence has its first token.
std::unique_ptr<Engine> Bench::start_decode(const BenchShape& shape) {
  auto engine = pipeline_->make_engine();
  std::set<std::uint64_t> started;
  engine->on_token = [&](std::uint64_t id, std::int32_t) { started.insert(id); };
  submit(*engine, shape, shape.generate);
  while (started.size() < static_cast<std::size_t>(shape.batch) && !engine->idle()) engine->step();
  engine->on_token = {};
  engine->reset_metrics();
  return engine;
}

void Bench::decode(const BenchShape& shape, BenchSamples& samples) {
  const std::unique_ptr<Engine> engine = start_decode(shape);
  const std::int64_t begin = engine->now_us();
  engine->run();
  const double seconds = static_cast<double>(std::max<std::int64_t>(engine->now_us() - begin, 1)) / 1e6;
  const EngineMetrics metrics = engine->metrics();
  check_finished(*engine);
  if (metrics.decode_steps == 0) return;
  const double step = static_cast<double>(metrics.decode_step_ns) / static_cast<double>(metrics.decode_steps) / 1e9;
  samples["decode_tokens_per_second"].push_back(static_cast<double>(metrics.decode_tokens) / seconds);
  samples["decode_ms_per_step"].push_back(step * 1e3);
  samples["decode_sequences_per_step"].push_back(static_cast<double>(metrics.decode_tokens) /
                                                 static_cast<double>(metrics.steps));
  if (metrics.decode_plugin_ns > 0) {
    samples["decode_outside_kernels"].push_back(1.0 - static_cast<double>(metrics.decode_plugin_ns) /
                                                          static_cast<double>(metrics.decode_step_ns));
  }
  samples["decode_gb_per_s"].push_back(static_cast<double>(weight_bytes(shape.batch)) / step / 1e9);
}

// How long the device stands without a kernel between decoding steps: the host's answer to the last step, the copies of
// its tokens and of the next step's arrays, and the launch. Two clock stamps of the device, the first and the last
// kernel of a recorded step, bound what is timed, so a gap runs from the end of one step's last kernel to the begin of
// the next one's first. They cost a step one or two microseconds: therefore a run of its own, whose steps are not timed
// as wholes. Steps that are recorded on the way wait for that and are left out.
void Bench::time_gaps(const BenchShape& shape, BenchSamples& samples) {
  const std::unique_ptr<Engine> engine = start_decode(shape);
  const std::vector<StepTime> steps = backend().time_steps([&] { engine->run(); });
  check_finished(*engine);
  for (std::size_t i = 1; i < steps.size(); ++i) {
    if (!steps[i].replayed) continue;
    samples["decode_gap_us"].push_back(
        static_cast<double>(static_cast<std::int64_t>(steps[i].start_ns - steps[i - 1].end_ns)) / 1e3);
  }
}

}  // namespace facet::cli
