// What the engine asks of a model: one ragged batch a step.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "facet/engine/kv_manager.h"
#include "facet/sampling/token_draw.h"

namespace facet {

// The new tokens of one step, side by side. Arrays live in host memory for the length of the call.
struct StepInput {
  const std::int32_t* ids = nullptr;        // [tokens]; below 0: see Model::begin_choice()
  const std::int32_t* positions = nullptr;  // [tokens]
  const std::int32_t* sequence = nullptr;   // [tokens]: index into batch
  abi::BatchView batch{};
  bool all_logits = false;  // logits of every token will be asked for: a decoding step can compute them on the way
  // Tests watch the hidden states [tokens, width], in host memory, through it: layer 0 is the embedding, layer n the
  // output of the n-th layer. Usually empty.
  std::function<void(std::int32_t layer, const float* hidden)> observer;
};

// Calls and time of one plugin, for activation proof and profiles.
struct PluginUse {
  std::string kind;
  std::string name;
  std::string version;
  std::string file;
  std::string options;
  std::string place;  // "linear", "attention.sliding", ...
  std::uint64_t file_hash = 0;
  std::int64_t calls = 0;
  std::int64_t nanoseconds = 0;
};

class Model {
 public:
  virtual ~Model() = default;

  virtual std::int64_t vocabulary() const = 0;
  virtual std::int64_t max_step_tokens() const = 0;
  // Most rows of one logits() call.
  virtual std::int64_t max_logit_rows() const = 0;
  virtual KvManager& kv() = 0;

  // Runs all layers over the batch of kv().begin_step(); writes KV rows; keeps the last hidden states.
  virtual void forward(const StepInput& input) = 0;
  // Logits [rows.size(), vocabulary] of tokens of the last forward(), valid until the next call. Host memory.
  virtual const float* logits(std::span<const std::int32_t> rows) = 0;
  // The token of each of those rows, chosen as `how` says; -1 where its logits hold NaN or plus infinity, or nothing is
  // possible.
  virtual std::vector<std::int32_t> choose(std::span<const std::int32_t> rows, std::span<const RowSampling> how) = 0;
  // The same for all rows of the last forward(), without waiting for them: the next forward() may be queued before
  // end_choice() hands them out, and takes an id of -1 - row for the token of that row. False: the last forward() did
  // not choose tokens, which it does only for decoding steps with all_logits.
  virtual bool begin_choice(std::span<const RowSampling> how) = 0;
  virtual std::vector<std::int32_t> end_choice() = 0;
  virtual std::vector<PluginUse> plugin_use() const = 0;
  // Time inside linear and attention plugins so far; 0 on a device whose kernels run after the call.
  virtual std::int64_t kernel_nanoseconds() const = 0;
};

}  // namespace facet
