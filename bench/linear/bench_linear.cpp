// bench_linear: every CPU linear plugin at the shapes of the 12B model (groups of 128, symmetric), at one row and at
// many. Counters give GB/s of weights as stored and Gop/s, each with its share of what the machine reached in the same
// process: read bandwidth for few rows, the peak of the plugin's multiply instruction for many.
// --processor_clock measures limits and plugins in processor time of the slowest thread: for a machine that others use.
//
// At few rows every call is paired with a plain read of as many bytes right after it, and %read is the share of the
// pairs' total: on a shared machine the bandwidth changes from second to second.
//
// Few rows: the matrices of one benchmark are rotated and hold more than 256 MB together, so no cache keeps any of
// them.
#include <benchmark/benchmark.h>
#include <fmt/format.h>
#include <sys/mman.h>

#include <cstring>
#include <stdexcept>

#include "machine_limits.h"
#include "weights.h"

namespace facet::bench {
namespace {

constexpr std::int64_t kRotatedBytes = 256ll << 20;
constexpr std::int64_t kFewRows = 8;
constexpr Shape kShapes[] = {{3840, 8192}, {4096, 3840}, {3840, 30720}, {15360, 3840}};

enum class Peak { vnni, bf16, fma };

struct Case {
  const char* plugin;
  std::map<std::string, std::string> options;
  abi::WeightFormat format;
  Peak peak;
};

// Anonymous pages, huge where the system has them, as the framework's memory for weights is.
class Pages {
 public:
  explicit Pages(std::uint64_t bytes) : bytes_(bytes) {
    data_ = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data_ == MAP_FAILED) throw std::runtime_error(fmt::format("no memory for {} bytes", bytes));
    madvise(data_, bytes, MADV_HUGEPAGE);
  }
  ~Pages() { munmap(data_, bytes_); }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  abi::Memory memory() const { return {data_, bytes_}; }

 private:
  std::uint64_t bytes_;
  void* data_;
};

abi::LinearProblem make_problem(const Case& what, Shape shape, std::int64_t rows) {
  abi::LinearProblem problem{};
  problem.size = sizeof problem;
  problem.device = abi::Device::cpu;
  problem.weight = what.format;
  problem.out_features = shape.out_features;
  problem.in_features = shape.in_features;
  problem.group_size = what.format == abi::WeightFormat::bf16 ? 0 : 128;
  problem.symmetric = 1;
  problem.input = abi::DType::f32;
  problem.output = abi::DType::f32;
  problem.min_rows = 1;
  problem.max_rows = rows;
  return problem;
}

void report(benchmark::State& state, const Case& what, Shape shape, std::int64_t rows, double bytes, double seconds,
            double read_total, const MachineLimits& limits) {
  const double operations = 2.0 * static_cast<double>(rows * shape.in_features * shape.out_features);
  const double peak = what.peak == Peak::vnni   ? limits.vnni_gops
                      : what.peak == Peak::bf16 ? limits.bf16_gops
                                                : limits.fma_gops;
  const double calls = static_cast<double>(state.iterations()) / seconds / 1e9;
  state.counters["GB/s"] = bytes * calls;
  state.counters["Gop/s"] = operations * calls;
  if (read_total > 0) state.counters["%read"] = 100 * read_total / seconds;
  if (peak > 0) state.counters["%peak"] = 100 * operations * calls / peak;
}

void run_case(benchmark::State& state, BenchHost& host, Clock clock, const Case& what, Shape shape, std::int64_t rows,
              const MachineLimits& limits) {
  const LinearPlugin plugin(what.plugin, host, what.options);
  abi::Linear& linear = plugin.linear();
  const abi::LinearProblem problem = make_problem(what, shape, rows);
  abi::LinearPlan plan{};
  std::string error;
  require_ok(linear.plan(problem, &plan, text_sink(error)), error);

  const std::uint64_t stored = plan.packed_bytes > 0
                                   ? plan.packed_bytes
                                   : static_cast<std::uint64_t>(shape.in_features * shape.out_features *
                                                                (what.format == abi::WeightFormat::bf16 ? 16 : 4) / 8);
  const std::int64_t copies = rows > 64 ? 1 : kRotatedBytes / static_cast<std::int64_t>(stored) + 1;
  std::vector<std::unique_ptr<SeededWeights>> weights;
  std::vector<abi::WeightView> views;
  std::vector<std::unique_ptr<Pages>> packed;
  for (std::int64_t i = 0; i < copies; ++i) {
    if (weights.empty() || plan.packed_bytes == 0) {
      weights.push_back(std::make_unique<SeededWeights>(shape, what.format, 128, static_cast<std::uint64_t>(i)));
      views.push_back(weights.back()->view());
    }
    if (plan.packed_bytes == 0) continue;
    packed.push_back(std::make_unique<Pages>(plan.packed_bytes));
    require_ok(linear.pack(plan, views.data(), 1, packed.back()->memory(), text_sink(error)), error);
  }
  const Pages workspace(std::max<std::uint64_t>(64, plan.workspace_bytes));
  std::vector<float> input(static_cast<std::size_t>(rows * shape.in_features));
  for (std::size_t i = 0; i < input.size(); ++i) input[i] = static_cast<float>(i * 2654435761u % 2048) / 1024.0f - 1.0f;
  std::vector<float> output(static_cast<std::size_t>(rows * shape.out_features));

  abi::LinearArgs args{};
  args.size = sizeof args;
  args.stream.device = abi::Device::cpu;
  args.rows = rows;
  args.input = input.data();
  args.input_stride = shape.in_features;
  args.output = output.data();
  args.output_stride = shape.out_features;
  args.workspace = workspace.memory();
  std::size_t copy = 0;
  double total = 0;
  double read_total = 0;
  // Of the matrix used last.
  const auto next_bytes = [&] {
    const std::size_t other = (copy + static_cast<std::size_t>(copies) / 2) % static_cast<std::size_t>(copies);
    return packed.empty() ? views[other].values : packed[other]->memory().data;
  };
  for ([[maybe_unused]] auto _ : state) {
    if (packed.empty()) {
      args.part_count = 1;
      args.parts = &views[copy];
    } else {
      args.packed = packed[copy]->memory().data;
    }
    const Stopwatch watch(host, clock);
    require_ok(linear.run(plan, args, text_sink(error)), error);
    const double seconds = watch.elapsed();
    state.SetIterationTime(seconds);
    total += seconds;
    if (rows <= kFewRows) read_total += read_seconds(host, clock, next_bytes(), stored);
    copy = (copy + 1) % static_cast<std::size_t>(copies);
    benchmark::ClobberMemory();
  }
  report(state, what, shape, rows, static_cast<double>(stored), total, read_total, limits);
  linear.release(&plan);
}

// Packing, part of the time a model takes to load: bytes of the packed form.
void run_pack(benchmark::State& state, BenchHost& host, Clock clock, abi::WeightFormat format, Shape shape) {
  const Case what{"w4a8", {}, format, Peak::vnni};
  const LinearPlugin plugin(what.plugin, host, what.options);
  abi::LinearPlan plan{};
  std::string error;
  require_ok(plugin.linear().plan(make_problem(what, shape, 1), &plan, text_sink(error)), error);
  const SeededWeights weights(shape, format, 128, 1);
  const abi::WeightView view = weights.view();
  const Pages packed(plan.packed_bytes);
  double total = 0;
  for ([[maybe_unused]] auto _ : state) {
    const Stopwatch watch(host, clock);
    require_ok(plugin.linear().pack(plan, &view, 1, packed.memory(), text_sink(error)), error);
    const double seconds = watch.elapsed();
    state.SetIterationTime(seconds);
    total += seconds;
  }
  state.counters["GB/s"] =
      static_cast<double>(plan.packed_bytes) * static_cast<double>(state.iterations()) / total / 1e9;
  plugin.linear().release(&plan);
}

std::vector<Case> cases() {
  using abi::WeightFormat;
  return {{"w4a8", {}, WeightFormat::int4, Peak::vnni},
          {"w4a8", {}, WeightFormat::int8, Peak::vnni},
          {"w4a16", {{"activations", "fp32"}}, WeightFormat::int4, Peak::fma},
          {"w4a16", {{"activations", "bf16"}}, WeightFormat::int4, Peak::bf16},
          {"dequant_gemm", {{"tile", "bf16"}}, WeightFormat::int4, Peak::bf16},
          {"dequant_gemm", {{"tile", "fp32"}}, WeightFormat::int4, Peak::fma},
          {"dense", {}, WeightFormat::bf16, Peak::fma},
          {"dense", {{"activations", "bf16"}}, WeightFormat::bf16, Peak::bf16},
          {"reference", {}, WeightFormat::int4, Peak::fma}};
}

std::string name_of(const Case& what, Shape shape, std::int64_t rows) {
  std::string name = what.plugin;
  for (const auto& [key, value] : what.options) name += fmt::format(":{}={}", key, value);
  const char* format = what.format == abi::WeightFormat::bf16   ? "bf16"
                       : what.format == abi::WeightFormat::int8 ? "int8"
                                                                : "int4";
  return fmt::format("{}/{}/{}x{}/rows:{}", name, format, shape.in_features, shape.out_features, rows);
}

void register_pack(BenchHost& host, Clock clock) {
  for (const abi::WeightFormat format : {abi::WeightFormat::int4, abi::WeightFormat::int8}) {
    const Shape shape = kShapes[2];
    const std::string name = fmt::format("pack/{}/{}x{}", format == abi::WeightFormat::int4 ? "int4" : "int8",
                                         shape.in_features, shape.out_features);
    benchmark::RegisterBenchmark(name.c_str(),
                                 [&host, clock, format, shape](benchmark::State& state) {
                                   try {
                                     run_pack(state, host, clock, format, shape);
                                   } catch (const std::exception& error) {
                                     state.SkipWithError(error.what());
                                   }
                                 })
        ->UseManualTime()
        ->Unit(benchmark::kMillisecond);
  }
}

void register_all(BenchHost& host, Clock clock, const MachineLimits& limits) {
  register_pack(host, clock);
  for (const std::int64_t rows : {1, 2, 4, 8, 64, 512}) {
    for (const Case& what : cases()) {
      const bool reference = std::string_view(what.plugin) == "reference";
      for (const Shape shape : kShapes) {
        // The baseline takes seconds a call at the larger shapes.
        if (reference && (shape.out_features > 3840 || shape.in_features > 4096)) continue;
        benchmark::RegisterBenchmark(name_of(what, shape, rows).c_str(),
                                     [&host, &limits, clock, what, shape, rows](benchmark::State& state) {
                                       try {
                                         run_case(state, host, clock, what, shape, rows, limits);
                                       } catch (const std::exception& error) {
                                         state.SkipWithError(error.what());
                                       }
                                     })
            ->UseManualTime()
            ->Unit(benchmark::kMicrosecond);
      }
    }
  }
}

}  // namespace
}  // namespace facet::bench

int main(int argc, char** argv) {
  using namespace facet::bench;
  benchmark::Initialize(&argc, argv);
  Clock clock = Clock::wall;
  if (argc > 1 && std::string_view(argv[argc - 1]) == "--processor_clock") {
    clock = Clock::processor;
    --argc;
  }
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  BenchHost host(2);
  const MachineLimits limits = measure_limits(host, clock);
  benchmark::AddCustomContext("limits", fmt::format("read {:.1f} GB/s, VNNI {:.0f}, BF16 {:.0f}, FMA {:.0f} Gop/s, 2 "
                                                    "threads",
                                                    limits.read_gbps, limits.vnni_gops, limits.bf16_gops,
                                                    limits.fma_gops, clock == Clock::wall ? "wall" : "processor"));
  register_all(host, clock, limits);
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
