// Attention over calibration sequences on a device: one plugin for each kind of layer, and one layer's cache that all
// layers take in turn.
#pragma once

#include <memory>

#include "facet/engine/attention_module.h"
#include "facet/engine/step_arrays.h"
#include "gemma4/calibration_batch.h"
#include "gemma4/gemma4_config.h"

namespace facet::gemma4 {

class CalibrationAttention {
 public:
  // Plans for any of `batches`; `widest`: most tokens of one. Throws as assemble_attention() does.
  CalibrationAttention(const ModelConfig& model, const Config& config, PluginRegistry& registry, const Backend& backend,
                       const std::vector<CalibrationBatch>& batches, std::int64_t widest);

  std::uint64_t pool_bytes() const { return pool_bytes_; }
  std::uint64_t step_bytes() const { return step_->bytes(); }
  std::uint64_t workspace_bytes() const { return workspace_bytes_; }
  void allocate(Backend& backend) { kv_->allocate(backend); }

  // Opens a batch's sequences and writes the arrays of its step to `memory` of step_bytes().
  void begin(Backend& backend, const CalibrationBatch& batch, void* memory);
  // Between begin() and end().
  const StepArrays& step() const { return *step_; }
  const abi::KvView& view(std::size_t layer) const {
    return kv_->view(static_cast<std::int32_t>(kind_of_layer_[layer]));
  }
  AttentionModule& module(std::size_t layer) { return *kinds_[kind_of_layer_[layer]]; }
  // Only the host's books: the device may still be reading the rows, and what overwrites them is queued behind it.
  void end(const CalibrationBatch& batch);

 private:
  std::vector<std::size_t> kind_of_layer_;
  std::vector<std::unique_ptr<AttentionModule>> kinds_;
  std::unique_ptr<KvManager> kv_;
  std::unique_ptr<StepArrays> step_;
  std::uint64_t pool_bytes_ = 0, workspace_bytes_ = 0;
};

}  // namespace facet::gemma4
