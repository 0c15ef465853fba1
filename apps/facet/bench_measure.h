// facet bench: what is measured of one pipeline.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "common.h"

namespace facet::cli {

struct BenchOptions {
  std::string config;     // TOML file; may be empty with `synthetic`
  std::string synthetic;  // name of a shape with random weights, in place of the config's model
  std::string device;     // in place of the config's engine.device; empty: that one
  std::vector<std::int64_t> prompt_tokens = {128, 512}, generate = {64}, batch = {1, 4};
  std::int64_t repeat = 5;
  std::uint64_t seed = 1;
  bool profile = false;
  std::string tune;  // file to write; see tune.h
};

struct BenchShape {
  std::int64_t prompt, generate, batch;
};

// Values of all repeats, by name.
using BenchSamples = std::map<std::string, std::vector<double>>;

class Bench {
 public:
  // Loads the pipeline; options must outlive the bench. Throws Error(usage) for a shape that does not fit it, before
  // any weight is read.
  Bench(const BenchOptions& options, std::unique_ptr<gemma4::Pipeline> pipeline, const GlobalOptions& global);

  std::vector<BenchShape> shapes() const;
  BenchSamples measure(const BenchShape& shape);
  // One more prefill and decode, by part and by kernel.
  Json profile(const BenchShape& shape);
  // Bytes a second, one value a repeat; empty, with a warning, where there is no room for it.
  const std::vector<double>& read_rates() const { return read_rates_; }
  // Operations a second of bf16 products; empty on the CPU.
  const std::vector<double>& multiply_rates() const { return multiply_rates_; }
  std::uint64_t read_rate_bytes() const;
  // Bytes of weights that one step with `rows` rows in every linear reads, from the plan of the plugins that serve
  // them.
  std::uint64_t weight_bytes(std::int64_t rows) const;

  gemma4::Pipeline& pipeline() { return *pipeline_; }
  Backend& backend() const { return *pipeline_->shared()->backend; }
  bool on_cpu() const { return backend().device() == abi::Device::cpu; }

 private:
  void check_shapes() const;
  void measure_rates();
  void submit(Engine& engine, const BenchShape& shape, std::int64_t generate);
  void prefill(const BenchShape& shape, BenchSamples& samples);
  std::unique_ptr<Engine> start_decode(const BenchShape& shape);
  void decode(const BenchShape& shape, BenchSamples& samples);
  void time_gaps(const BenchShape& shape, BenchSamples& samples);

  const BenchOptions& options_;
  std::unique_ptr<gemma4::Pipeline> pipeline_;
  std::mt19937_64 random_;
  std::vector<double> read_rates_;
  std::vector<double> multiply_rates_;
  std::uint64_t salt_ = 0;
};

}  // namespace facet::cli
