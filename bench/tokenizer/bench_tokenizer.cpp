// Tokenizer: time to load a file of Gemma's size, and text per second in both directions. Every result is checked
// first.
#include <benchmark/benchmark.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <random>
#include <string>

#include "facet/tokenizer/stream_decoder.h"
#include "facet/tokenizer/tokenizer.h"
#include "synthetic_tokenizer.h"

namespace {

using facet::Tokenizer;
namespace fs = std::filesystem;

// The synthetic file lives as long as the program.
class SyntheticFile {
 public:
  SyntheticFile() : folder_(fs::temp_directory_path() / ("facet_bench_tokenizer_" + std::to_string(getpid()))) {
    fs::create_directories(folder_);
    size_ = facet::bench::write_synthetic_tokenizer(path(), 1);
  }
  ~SyntheticFile() {
    std::error_code ignored;
    fs::remove_all(folder_, ignored);
  }
  fs::path path() const { return folder_ / "tokenizer.json"; }
  facet::bench::SyntheticSize size() const { return size_; }

 private:
  fs::path folder_;
  facet::bench::SyntheticSize size_{};
};

const SyntheticFile& synthetic_file() {
  static const SyntheticFile file;
  return file;
}

const Tokenizer& tokenizer(bool synthetic) {
  static const Tokenizer shipped =
      Tokenizer::load(fs::path(FACET_SOURCE_DIR) / "models/gemma4/checkpoints/docs-5m/tokenizer.json");
  static const Tokenizer large = Tokenizer::load(synthetic_file().path());
  return synthetic ? large : shipped;
}

// Source code and prose: this repository's own CMake and C++ files, about 1 MB by repetition.
const std::string& source_text() {
  static const std::string text = [] {
    std::string all;
    for (const char* folder : {"cmake", "framework/src/tokenizer", "framework/include/facet"}) {
      for (const fs::directory_entry& entry : fs::recursive_directory_iterator(fs::path(FACET_SOURCE_DIR) / folder)) {
        if (!entry.is_regular_file()) continue;
        std::ifstream stream(entry.path(), std::ios::binary);
        const std::string content(std::istreambuf_iterator<char>(stream), {});
        // U+2581 stands for a space in the vocabulary and would not come back.
        if (content.find("\xE2\x96\x81") == std::string::npos) all += content;
      }
    }
    std::string megabyte;
    while (megabyte.size() < 1'000'000) megabyte += all;
    return megabyte;
  }();
  return text;
}

// Letters without a space: nothing to cut at, the worst case for merging.
std::string unbroken_text(std::size_t bytes) {
  std::mt19937 random(7);
  std::string text;
  while (text.size() < bytes) text += "etaoinsr"[random() % 8];
  return text;
}

void set_rate(benchmark::State& state, const std::string& text) {
  state.SetBytesProcessed(static_cast<std::int64_t>(state.iterations()) * static_cast<std::int64_t>(text.size()));
}

void load_synthetic(benchmark::State& state) {
  const fs::path path = synthetic_file().path();
  for (auto _ : state) {
    const Tokenizer loaded = Tokenizer::load(path);
    if (loaded.size() != synthetic_file().size().tokens) state.SkipWithError("wrong number of tokens");
  }
  state.counters["tokens"] = synthetic_file().size().tokens;
  state.counters["merges"] = synthetic_file().size().merges;
  state.counters["file_MB"] = static_cast<double>(fs::file_size(path)) / 1e6;
}
BENCHMARK(load_synthetic)->Unit(benchmark::kMillisecond)->UseRealTime();

void encode_text(benchmark::State& state, bool synthetic, const std::string& text) {
  const Tokenizer& used = tokenizer(synthetic);
  // This repository's files spell control tokens, which decoding would leave out.
  constexpr facet::EncodeOptions kOptions{.add_special = true, .parse_special = false};
  const auto ids = used.encode(text, kOptions);
  if (used.decode(ids) != text) state.SkipWithError("the text does not come back");
  for (auto _ : state) benchmark::DoNotOptimize(used.encode(text, kOptions));
  set_rate(state, text);
  state.counters["bytes_per_id"] = static_cast<double>(text.size()) / static_cast<double>(ids.size());
}
BENCHMARK_CAPTURE(encode_text, shipped_source, false, source_text())->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(encode_text, synthetic_source, true, source_text())->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(encode_text, shipped_unbroken_100k, false, unbroken_text(100'000))->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(encode_text, shipped_unbroken_1M, false, unbroken_text(1'000'000))->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(encode_text, synthetic_unbroken_1M, true, unbroken_text(1'000'000))->Unit(benchmark::kMillisecond);

void decode_text(benchmark::State& state, bool synthetic) {
  const Tokenizer& used = tokenizer(synthetic);
  const auto ids = used.encode(source_text());
  for (auto _ : state) benchmark::DoNotOptimize(used.decode(ids));
  set_rate(state, source_text());
}
BENCHMARK_CAPTURE(decode_text, shipped, false)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(decode_text, synthetic, true)->Unit(benchmark::kMillisecond);

void stream_text(benchmark::State& state) {
  const Tokenizer& used = tokenizer(false);
  const auto ids = used.encode(source_text());
  for (auto _ : state) {
    facet::StreamDecoder decoder(used);
    for (const std::int32_t id : ids) benchmark::DoNotOptimize(decoder.push(id));
    benchmark::DoNotOptimize(decoder.finish());
  }
  set_rate(state, source_text());
}
BENCHMARK(stream_text)->Unit(benchmark::kMillisecond);

}  // namespace

BENCHMARK_MAIN();
