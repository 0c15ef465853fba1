// Time to quantize one sliding layer of Gemma 4 12B with seeded weights and inputs on a GPU, from rows in host memory
// to codes in host memory. Making the rows, which in a quantization is the forward, is not counted.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <bit>
#include <chrono>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "facet/quantizer/engine.h"

namespace facet::bench {
namespace {

using Clock = std::chrono::steady_clock;
using Json = nlohmann::ordered_json;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

struct Stage {
  const char* name;
  std::int64_t inputs;
  std::vector<std::int64_t> outputs;
};

const Stage kStages[] = {{"q k v", 3840, {4096, 2048, 2048}},
                         {"o", 4096, {3840}},
                         {"gate up", 3840, {15360, 15360}},
                         {"down", 15360, {3840}}};

// Hashes of the place, about normal: the sum of four bytes. Every input has a size of its own.
void fill(float* rows, std::int64_t count, std::int64_t width, std::uint64_t seed) {
  const auto workers = static_cast<std::int64_t>(std::max(1u, std::thread::hardware_concurrency()));
  std::vector<std::thread> threads;
  for (std::int64_t worker = 0; worker < workers; ++worker) {
    threads.emplace_back([=] {
      for (std::int64_t i = count * worker / workers * width; i < count * (worker + 1) / workers * width; ++i) {
        std::uint64_t hash = (static_cast<std::uint64_t>(i) + seed) * 0x9e3779b97f4a7c15ull;
        hash = (hash ^ (hash >> 29)) * 0xbf58476d1ce4e5b9ull;
        hash ^= hash >> 32;
        const auto sum =
            static_cast<float>((hash & 255) + ((hash >> 8) & 255) + ((hash >> 16) & 255) + ((hash >> 24) & 255));
        const auto size = 0.5f + static_cast<float>((static_cast<std::uint64_t>(i % width) * 2654435761u >> 8) & 7);
        rows[i] = (sum - 510.0f) / 148.0f * size;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

std::vector<std::uint16_t> weights(std::int64_t rows, std::int64_t width, std::uint64_t seed) {
  std::vector<float> values(static_cast<std::size_t>(rows * width));
  fill(values.data(), rows, width, seed);
  std::vector<std::uint16_t> bf16(values.size());
  for (std::size_t i = 0; i < values.size(); ++i)
    bf16[i] = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(values[i] * 0.02f) >> 16);
  return bf16;
}

struct Settings {
  std::string json, library = FACET_LIBRARY_DIR "/libfacet_quantizer_cuda.so";
  std::int64_t rows = 128 * 2048, batch = 8192;
  int refinements = 3, repeat = 2;
  std::int64_t group = 128;
};

struct Seconds {
  double hessian = 0, factor = 0, matrices = 0, blas = 0;
  double total() const { return hessian + factor + matrices; }
};

Json stage_run(quantizer::Engine& engine, const Settings& settings, const Stage& stage, Seconds& sum) {
  quantizer::GptqOptions options;
  options.group_size = settings.group;
  options.refinements = settings.refinements;
  const double blas_before = engine.blas_seconds();
  Seconds seconds;
  auto start = Clock::now();
  auto inputs = engine.begin(stage.inputs, options, false);
  float* rows = inputs->rows(settings.batch);
  seconds.hessian += seconds_since(start);
  // The same rows in every batch: what the device does depends on their number alone.
  fill(rows, settings.batch, stage.inputs, 1);
  start = Clock::now();
  for (std::int64_t row = 0; row < settings.rows; row += settings.batch) {
    inputs->rows(std::min(settings.batch, settings.rows - row));
    inputs->add();
  }
  engine.blas_seconds();  // waits
  seconds.hessian += seconds_since(start);
  start = Clock::now();
  inputs->factor();
  seconds.factor = seconds_since(start);
  Json matrices = Json::array();
  for (std::size_t i = 0; i < stage.outputs.size(); ++i) {
    const std::vector<std::uint16_t> values = weights(stage.outputs[i], stage.inputs, 100 + i);
    start = Clock::now();
    const quantizer::GptqResult result = inputs->quantize(
        {"weight", quantizer::Matrix::Type::bf16, values.data(), stage.outputs[i], stage.inputs}, options);
    const double took = seconds_since(start);
    seconds.matrices += took;
    matrices.push_back({{"outputs", stage.outputs[i]},
                        {"seconds", took},
                        {"relative_error", result.error / result.output},
                        {"nearest_relative_error", result.nearest_error / result.output}});
  }
  seconds.blas = engine.blas_seconds() - blas_before;
  sum.hessian += seconds.hessian;
  sum.factor += seconds.factor;
  sum.matrices += seconds.matrices;
  sum.blas += seconds.blas;
  fmt::print("  {:<8} {:>6} inputs: Hessian {:.3f} s, factor {:.3f} s, matrices {:.3f} s, BLAS {:.0f} %\n", stage.name,
             stage.inputs, seconds.hessian, seconds.factor, seconds.matrices, 100 * seconds.blas / seconds.total());
  return {{"stage", stage.name},
          {"inputs", stage.inputs},
          {"hessian_seconds", seconds.hessian},
          {"factor_seconds", seconds.factor},
          {"matrix_seconds", seconds.matrices},
          {"blas_seconds", seconds.blas},
          {"matrices", std::move(matrices)}};
}

int bench(int argc, char** argv) {
  Settings settings;
  CLI::App app("One sliding layer of Gemma 4 12B through the CUDA quantizer");
  app.add_option("--json", settings.json, "File to write");
  app.add_option("--library", settings.library, "libfacet_quantizer_cuda.so");
  app.add_option("--rows", settings.rows, "Calibration rows");
  app.add_option("--batch", settings.batch, "Rows handed over at once");
  app.add_option("--refinements", settings.refinements, "Rounds of coordinate descent");
  app.add_option("--group", settings.group, "Inputs that share a scale");
  app.add_option("--repeat", settings.repeat, "Whole layers; the first one warms up");
  CLI11_PARSE(app, argc, argv);
  const auto engine = quantizer::make_cuda_engine(settings.library);
  std::string command;
  for (int i = 1; i < argc; ++i) command += fmt::format(" {}", argv[i]);
  Json runs = Json::array();
  for (int repeat = 0; repeat < settings.repeat; ++repeat) {
    Seconds seconds;
    Json stages = Json::array();
    fmt::print("layer {} of {}\n", repeat + 1, settings.repeat);
    for (const Stage& stage : kStages) stages.push_back(stage_run(*engine, settings, stage, seconds));
    fmt::print("  together {:.3f} s, {:.0f} % of it in cuBLAS and cuSOLVER\n", seconds.total(),
               100 * seconds.blas / seconds.total());
    runs.push_back(
        {{"seconds", seconds.total()}, {"blas_share", seconds.blas / seconds.total()}, {"stages", std::move(stages)}});
  }
  const Json document = {
      {"machine", {{"gpu", engine->description()}}},
      {"command", "bench_quantize_cuda" + command},
      {"method",
       "wall time from rows in pinned host memory to codes in host memory; making rows and weights is "
       "not counted; cuBLAS and cuSOLVER by events around each call"},
      {"rows", settings.rows},
      {"layers", std::move(runs)}};
  if (!settings.json.empty()) std::ofstream(settings.json) << document.dump(1) << '\n';
  return 0;
}

}  // namespace
}  // namespace facet::bench

int main(int argc, char** argv) {
  try {
    return facet::bench::bench(argc, argv);
  } catch (const std::exception& error) {
    fmt::print(stderr, "bench_quantize_cuda: {}\n", error.what());
    return 1;
  }
}
