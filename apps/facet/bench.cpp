// facet bench: prefill and decode speed of a pipeline, beside what the memory of the machine can do.
#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "bench_profile.h"
#include "common.h"
#include "facet/base/log.h"
#include "facet/measure/machine_limits.h"
#include "facet/measure/percentiles.h"
#include "request_file.h"

namespace facet::cli {
namespace {

// Several times any last-level cache of a desktop, and large against one of a server's slice.
constexpr std::int64_t kBandwidthBytes = std::int64_t{512} << 20;

struct BenchOptions {
  std::string config;
  std::vector<std::int64_t> prompt_tokens = {128, 512}, generate = {64}, batch = {1, 4};
  std::int64_t repeat = 5;
  std::uint64_t seed = 1;
  bool profile = false;
};

struct Shape {
  std::int64_t prompt, generate, batch;
};

// Values of all repeats, by name.
using Samples = std::map<std::string, std::vector<double>>;

Json spread_json(const std::vector<double>& values) {
  if (values.empty()) return nullptr;
  return {{"median", median(values)},
          {"min", *std::min_element(values.begin(), values.end())},
          {"max", *std::max_element(values.begin(), values.end())}};
}

// Bytes of weights that one step with `rows` rows in every linear reads, from the plan of the plugins that serve them.
std::uint64_t weight_bytes(const gemma4::ModelPlan& plan, std::int64_t rows) {
  std::uint64_t bytes = 0;
  for (const LinearGroup* group : plan.linears()) {
    for (const LinearModule& module : group->modules()) {
      const auto& choices = module.choices();
      const auto served = std::find_if(choices.begin(), choices.end(),
                                       [&](const LinearChoice& choice) { return rows <= choice.max_rows; });
      const std::uint64_t packed = served == choices.end() ? 0 : served->plan.packed_bytes;
      bytes += packed;
      if (packed > 0) continue;
      for (const LinearSpec::Part& part : module.parts()) {
        bytes += part.format.value_bytes(part.out_features, module.in_features()) +
                 part.format.side_bytes(part.out_features, module.in_features());
      }
    }
  }
  return bytes;
}

class Bench {
 public:
  Bench(const BenchOptions& options, const GlobalOptions& global)
      : options_(options), pipeline_(open_pipeline(options.config, global, false)), random_(options.seed) {
    check_shapes();
    Progress progress("loading weights");
    pipeline_->load([&](std::size_t done, std::size_t total) { progress.update(done, total); });
  }

  std::vector<Shape> shapes() const {
    std::vector<Shape> shapes;
    for (const std::int64_t batch : options_.batch) {
      for (const std::int64_t prompt : options_.prompt_tokens) {
        for (const std::int64_t generate : options_.generate) shapes.push_back({prompt, generate, batch});
      }
    }
    return shapes;
  }

  Samples measure(const Shape& shape) {
    Samples samples;
    // The first pass touches memory that nothing has touched before and is not counted.
    for (std::int64_t pass = 0; pass <= options_.repeat; ++pass) {
      Samples one;
      prefill(shape, one);
      if (shape.generate > 1) decode(shape, one);
      if (pass == 0) continue;
      for (const auto& [name, values] : one) samples[name].insert(samples[name].end(), values.begin(), values.end());
    }
    return samples;
  }

  // Kernels of one more prefill and decode, by name.
  Json profile(const Shape& shape) {
    Samples ignored;
    const std::vector<KernelTime> first = backend().trace([&] { prefill(shape, ignored); });
    Json decode_profile = nullptr;
    if (shape.generate > 1) {
      const std::unique_ptr<Engine> engine = start_decode(shape);
      const std::vector<KernelTime> kernels = backend().trace([&] { engine->run(); });
      decode_profile = profile_json(kernels, engine->metrics().decode_steps);
      check_finished(*engine);
    }
    return {{"prefill", profile_json(first, 1)}, {"decode", std::move(decode_profile)}};
  }

  gemma4::Pipeline& pipeline() { return *pipeline_; }
  Backend& backend() const { return *pipeline_->shared()->backend; }
  bool on_cpu() const { return backend().device() == abi::Device::cpu; }

 private:
  // Before anything is loaded.
  void check_shapes() const {
    const std::int64_t room = pipeline_->plan().kv().max_sequence_tokens();
    const std::int64_t sequences = pipeline_->config().engine.max_sequences;
    Problems problems;
    if (options_.profile && on_cpu())
      problems.add(
          "--profile traces kernels of a GPU, engine.device is cpu here; times by plugin are in 'facet run --json'");
    std::set<std::int64_t> named;
    for (const Shape& shape : shapes()) {
      if (shape.batch > sequences && named.insert(shape.batch).second)
        problems.add("--batch {} is more than engine.max_sequences {}", shape.batch, sequences);
      if (shape.prompt + shape.generate - 1 > room && shape.batch == options_.batch.front()) {
        problems.add("--prompt-tokens {} and --generate {} need {} KV rows; a sequence can hold {}", shape.prompt,
                     shape.generate, shape.prompt + shape.generate - 1, room);
      }
    }
    problems.throw_if_any(ErrorKind::usage, fmt::format("{}: cannot be measured:", options_.config));
  }

  void submit(Engine& engine, const Shape& shape, std::int64_t generate) {
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

  static void check_finished(Engine& engine) {
    for (const RequestResult& result : engine.take_finished()) {
      if (result.finish_reason == FinishReason::error)
        throw_error(ErrorKind::run, "sequence {} failed: {}", result.id, result.error);
    }
  }

  // One token each: the time until every prompt is computed.
  void prefill(const Shape& shape, Samples& samples) {
    const auto engine = pipeline_->make_engine();
    submit(*engine, shape, 1);
    engine->run();
    const double seconds = static_cast<double>(std::max<std::int64_t>(engine->now_us(), 1)) / 1e6;
    check_finished(*engine);
    samples["prefill_ms"].push_back(seconds * 1e3);
    samples["prefill_tokens_per_second"].push_back(static_cast<double>(shape.batch * shape.prompt) / seconds);
  }

  // At the moment at which every sequence has its first token.
  std::unique_ptr<Engine> start_decode(const Shape& shape) {
    auto engine = pipeline_->make_engine();
    std::set<std::uint64_t> started;
    engine->on_token = [&](std::uint64_t id, std::int32_t) { started.insert(id); };
    submit(*engine, shape, shape.generate);
    while (started.size() < static_cast<std::size_t>(shape.batch) && !engine->idle()) engine->step();
    engine->on_token = {};
    engine->reset_metrics();
    return engine;
  }

  void decode(const Shape& shape, Samples& samples) {
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
    samples["decode_gb_per_s"].push_back(static_cast<double>(weight_bytes(pipeline_->plan(), shape.batch)) / step /
                                         1e9);
  }

  const BenchOptions& options_;
  std::unique_ptr<gemma4::Pipeline> pipeline_;
  std::mt19937_64 random_;
  std::uint64_t salt_ = 0;
};

// bandwidth: of the memory the weights lie in, empty when it was not measured.
Json shape_json(const Shape& shape, Samples samples, std::uint64_t bytes, const std::vector<double>& bandwidth) {
  Json decode = nullptr;
  if (!samples["decode_ms_per_step"].empty()) {
    decode = {{"tokens_per_second", spread_json(samples["decode_tokens_per_second"])},
              {"ms_per_step", spread_json(samples["decode_ms_per_step"])},
              {"sequences_per_step", spread_json(samples["decode_sequences_per_step"])},
              {"outside_kernels", spread_json(samples["decode_outside_kernels"])},
              {"weight_bytes_per_step", bytes},
              {"gb_per_s", spread_json(samples["decode_gb_per_s"])},
              {"share_of_read_bandwidth",
               bandwidth.empty() ? Json() : Json(median(samples["decode_gb_per_s"]) / median(bandwidth))}};
  }
  return {{"prompt_tokens", shape.prompt},
          {"generate", shape.generate},
          {"batch", shape.batch},
          {"prefill",
           {{"tokens_per_second", spread_json(samples["prefill_tokens_per_second"])},
            {"ms", spread_json(samples["prefill_ms"])}}},
          {"decode", std::move(decode)}};
}

std::string spread_text(const Json& spread, int digits) {
  return fmt::format("{:.{}f} ({:.{}f} to {:.{}f})", spread["median"].get<double>(), digits,
                     spread["min"].get<double>(), digits, spread["max"].get<double>(), digits);
}

void print_decode(const Json& decode) {
  fmt::print("  decode   {} tokens/s, {} ms a step\n", spread_text(decode["tokens_per_second"], 1),
             spread_text(decode["ms_per_step"], 3));
  if (!decode["outside_kernels"].is_null()) {
    fmt::print("           {:.1f} % of a step outside linear and attention plugins\n",
               100 * decode["outside_kernels"]["median"].get<double>());
  }
  fmt::print("           {:.2f} MB of weights a step: {:.2f} GB/s", decode["weight_bytes_per_step"].get<double>() / 1e6,
             decode["gb_per_s"]["median"].get<double>());
  const Json& share = decode["share_of_read_bandwidth"];
  fmt::print("{}\n", share.is_null() ? "" : fmt::format(", {:.0f} % of the read bandwidth", 100 * share.get<double>()));
}

void print_bench(const Json& document) {
  const Json& limit = document["read_bandwidth"];
  if (!limit.is_null()) {
    fmt::print("memory read bandwidth, {} threads: {} GB/s; ", limit["threads"].get<std::int64_t>(),
               spread_text(limit["gb_per_s"], 1));
  }
  fmt::print("median (least to most) of {} repeats\n", document["repeat"].get<std::int64_t>());
  for (const Json& run : document["runs"]) {
    fmt::print("\nbatch {}, prompts of {} tokens, {} generated\n", run["batch"].get<std::int64_t>(),
               run["prompt_tokens"].get<std::int64_t>(), run["generate"].get<std::int64_t>());
    fmt::print("  prefill  {} tokens/s, {} ms\n", spread_text(run["prefill"]["tokens_per_second"], 1),
               spread_text(run["prefill"]["ms"], 2));
    if (!run["decode"].is_null()) print_decode(run["decode"]);
    if (!run.contains("profile")) continue;
    print_profile("prefill", run["profile"]["prefill"]);
    print_profile("decode", run["profile"]["decode"]);
  }
}

void bench(const BenchOptions& options, const GlobalOptions& global) {
  Bench machine(options, global);
  const auto threads = static_cast<std::int64_t>(machine.pipeline().shared()->services->table()->worker_count);
  std::vector<double> bandwidth;
  if (machine.on_cpu()) bandwidth = measure_read_bandwidth(threads, kBandwidthBytes, options.repeat);
  for (double& value : bandwidth) value /= 1e9;
  Json limit = {{"threads", threads}, {"bytes", kBandwidthBytes}, {"gb_per_s", spread_json(bandwidth)}};
  Json document = {{"repeat", options.repeat},
                   {"seed", options.seed},
                   {"read_bandwidth", bandwidth.empty() ? Json() : std::move(limit)},
                   {"runs", Json::array()}};
  const std::vector<Shape> shapes = machine.shapes();
  {
    Progress progress("measuring");
    for (std::size_t i = 0; i < shapes.size(); ++i) {
      progress.update(i, shapes.size());
      document["runs"].push_back(shape_json(shapes[i], machine.measure(shapes[i]),
                                            weight_bytes(machine.pipeline().plan(), shapes[i].batch), bandwidth));
      if (options.profile) document["runs"].back()["profile"] = machine.profile(shapes[i]);
    }
  }
  document["record"] = run_record(machine.pipeline());
  if (global.json) {
    print_json(document);
  } else {
    print_bench(document);
  }
}

}  // namespace

void add_bench(CLI::App& app, GlobalOptions& global) {
  CLI::App* command = app.add_subcommand("bench", "Prefill and decode speed with random tokens");
  auto options = std::make_shared<BenchOptions>();
  const CLI::Range positive(std::int64_t{1}, std::int64_t{1} << 31);
  command->add_option("config", options->config, "TOML file")->required();
  command->add_option("--prompt-tokens", options->prompt_tokens, "Lengths of prompts, separated by commas")
      ->delimiter(',')
      ->check(positive)
      ->capture_default_str();
  command->add_option("--generate", options->generate, "Tokens to generate; 1: no decode is measured")
      ->delimiter(',')
      ->check(positive)
      ->capture_default_str();
  command->add_option("--batch", options->batch, "Sequences at the same time")
      ->delimiter(',')
      ->check(positive)
      ->capture_default_str();
  command
      ->add_option("--repeat", options->repeat, "Measured repeats of each combination, after one that is not counted")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{100000}))
      ->capture_default_str();
  command->add_option("--seed", options->seed, "Seed of the token ids")
      ->transform(whole_number(0, UINT64_MAX))
      ->capture_default_str();
  command->add_flag("--profile", options->profile, "Trace one more run of each: time by kernel (CUDA)");
  add_global_options(*command, global);
  command->callback([options, &global] {
    set_log_level(parse_log_level(global.log_level));
    bench(*options, global);
  });
}

}  // namespace facet::cli
