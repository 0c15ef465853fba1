// The walk of CalibrationForward on a GPU: whole sequences, layer by layer, with weights that the caller supplies while
// it goes. Linear layers, attention and cache are the plugins that serve a model, so what the quantizer sees is what
// the served model computes: activations in bf16, the residual stream in float. All of it stays in device memory.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "facet/engine/linear_module.h"
#include "gemma4/calibration_attention.h"
#include "gemma4/calibration_forward.h"

namespace facet::gemma4 {

// Several models of one shape walk side by side on the same sequences: the quantized one and, where it is wanted, its
// source. For every layer: begin_layer(), then for each stage input() of any model and batch, and advance() of every
// model. Not for use by several threads.
class DeviceCalibration {
 public:
  // Formats of one model's modules, by full name.
  using FormatOf = std::function<LinearFormat(const std::string& module, std::int64_t in_features)>;

  // Plans, and allocates nothing. Throws Error(usage) for the sequences as CalibrationForward does, and Error(plugin)
  // with every reason when a plugin is missing or does not take a layer. Everything must outlive the object.
  DeviceCalibration(const CheckpointFacts& facts, const Checkpoint& checkpoint, Backend& backend,
                    PluginRegistry& registry, const std::vector<std::vector<std::int32_t>>& sequences,
                    std::int64_t batch_tokens, std::vector<FormatOf> models);
  ~DeviceCalibration();

  const std::vector<CalibrationBatch>& batches() const { return batches_; }
  // Most tokens of a batch.
  std::int64_t widest_batch() const { return widest_; }
  // Device memory that is held from embed() on, and what one advance() holds beside it.
  std::uint64_t state_bytes() const;
  std::uint64_t weight_bytes() const { return packed_bytes_; }
  // Most that embed() holds beside the state.
  std::uint64_t table_bytes(const abi::WeightView& table) const;

  // Allocates the state. One table for each model; equal ones are copied to the device once.
  void embed(std::span<const abi::WeightView> tables);
  void begin_layer(std::size_t layer);
  // Device memory [tokens, in_features] of bf16: what the stage's modules read. Queued on the backend's stream; valid
  // until the next call for the same model.
  const void* input(std::size_t model, LayerStage stage, std::size_t batch);
  // What the output head reads, after the last layer.
  const void* head_input(std::size_t model, std::size_t batch);
  // Runs the stage's modules; weights in the order of stage_modules(), in the formats of `models`. Returns when the
  // device is done.
  void advance(std::size_t model, LayerStage stage, std::span<const LinearWeight> weights);

 private:
  struct Scratch;
  struct State {
    std::vector<DeviceBuffer> hidden;  // of each batch, [tokens, hidden] f32
    DeviceBuffer spare;                // an update goes from a batch's buffer to this one, which then is the batch's
    std::vector<DeviceBuffer> kept;    // of each batch, inputs of o or down, bf16
    DeviceBuffer normed;               // of one batch
  };
  struct Norms {
    DeviceBuffer input, query, key, post_attention, pre_feed_forward, post_feed_forward, final, inverse_frequency;
    float scalar = 1;
  };

  const LayerConfig& config() const { return facts_.model.layers[layer_]; }
  LinearGroup plan(std::size_t model, std::size_t layer, LayerStage stage);
  void plan_linears();
  void allocate();
  void upload_norm(DeviceBuffer& buffer, const std::string& name, std::int64_t count);
  const void* norm(std::size_t model, std::size_t batch, const DeviceBuffer& weight);
  void attend(std::size_t model, std::size_t batch, LinearGroup& group);
  void add_projection(std::size_t model, std::size_t batch, LinearGroup& group, const DeviceBuffer& post_norm,
                      float scale);
  void wait();

  const CheckpointFacts& facts_;
  const Checkpoint& checkpoint_;
  Backend& backend_;
  std::vector<FormatOf> models_;
  std::vector<CalibrationBatch> batches_;
  std::int64_t widest_ = 0, kept_width_ = 0;
  Config config_;
  LinearAssembler assembler_;
  std::unique_ptr<CalibrationAttention> attention_;
  std::unique_ptr<Scratch> scratch_;
  std::uint64_t workspace_bytes_ = 0, packed_bytes_ = 0;
  std::vector<State> states_;
  Norms norms_;
  std::size_t layer_ = 0;
};

}  // namespace facet::gemma4
