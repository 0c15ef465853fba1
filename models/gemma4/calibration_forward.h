// Gemma 4 layer by layer over whole sequences in float, with weights that the caller supplies while it goes: what a
// quantizer needs to see the inputs of each linear layer as the layers quantized before it leave them.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "facet/backend/backend.h"
#include "gemma4/gemma4_plan.h"

namespace facet::gemma4 {

// Matrix products of the caller's choice, row-major, strides in elements. Called from several threads at once.
class MatrixProducts {
 public:
  virtual ~MatrixProducts() = default;
  struct In {
    const float* values;
    std::int64_t stride;
  };
  struct Out {
    float* values;
    std::int64_t stride;
  };
  // out [m, n] = a [m, k] * b [k, n]
  virtual void multiply(std::int64_t m, std::int64_t n, std::int64_t k, In a, In b, Out out) const = 0;
  // out [m, n] = a [m, k] * b [n, k]^T
  virtual void multiply_transposed(std::int64_t m, std::int64_t n, std::int64_t k, In a, In b, Out out) const = 0;
};

// The linear layers of one layer, by the input they share, in the order in which they run.
enum class LayerStage { attention_input, attention_output, feed_forward_input, feed_forward_output };
inline constexpr std::array kLayerStages = {LayerStage::attention_input, LayerStage::attention_output,
                                            LayerStage::feed_forward_input, LayerStage::feed_forward_output};

struct StageModule {
  std::string name;  // full, without ".weight"
  std::int64_t out_features;
};
struct StageModules {
  std::vector<StageModule> modules;  // q, k and, unless values come from keys, v; o; gate and up; down
  std::int64_t in_features;
};
StageModules stage_modules(const CheckpointFacts& facts, std::size_t layer, LayerStage stage);

// Throws Error(usage) for an id outside of the vocabulary and for sequences longer than the model's positions, naming
// the sequence by its place, counted from 1.
void check_sequences(const ModelConfig& model, const std::vector<std::vector<std::int32_t>>& sequences);

// Dense weights [out, in] of a layer's modules, by stage and in the order of stage_modules().
struct LayerMatrices {
  std::array<std::vector<std::vector<float>>, kLayerStages.size()> stages;
  std::vector<std::vector<float>>& operator[](LayerStage stage) { return stages[static_cast<std::size_t>(stage)]; }
  const std::vector<std::vector<float>>& operator[](LayerStage stage) const {
    return stages[static_cast<std::size_t>(stage)];
  }
};

// Hidden states of some sequences on their way through the layers. For every layer: begin_layer(), then for each stage
// input() as often as wanted and advance() once for each sequence. input() and advance() of different sequences may run
// at the same time; neither result depends on other sequences.
class CalibrationForward {
 public:
  // Everything must outlive the object. Throws as check_sequences() does.
  CalibrationForward(const CheckpointFacts& facts, const Checkpoint& checkpoint, Backend& backend,
                     const MatrixProducts& products, const std::vector<std::vector<std::int32_t>>& sequences);

  std::size_t sequences() const { return hidden_.size(); }
  std::int64_t tokens(std::size_t sequence) const;
  void embed(std::size_t sequence, const abi::WeightView& table);
  // Reads the norms of a layer.
  void begin_layer(std::size_t layer);
  // out [tokens, in_features]: what the stage's modules read. Needs the matrices of feed_forward_input for
  // feed_forward_output, and no others.
  void input(LayerStage stage, std::size_t sequence, const LayerMatrices& matrices, float* out) const;
  // Runs the stage's modules. Needs their matrices and, for feed_forward_output, those of feed_forward_input.
  void advance(LayerStage stage, std::size_t sequence, const LayerMatrices& matrices);
  // out [tokens, hidden]: what the output head reads, after the last layer.
  void head_input(std::size_t sequence, float* out) const;

  // Bytes that `tokens` tokens keep alive between calls.
  static std::uint64_t state_bytes(const CheckpointFacts& facts, std::int64_t tokens);
  // Bytes that one call needs at most for a sequence of `tokens` tokens.
  static std::uint64_t scratch_bytes(const CheckpointFacts& facts, std::int64_t tokens);

 private:
  struct Norms {
    std::vector<float> input, query, key, post_attention, pre_feed_forward, post_feed_forward;
    float scalar = 1;
  };
  const LayerConfig& config() const { return facts_.model.layers[layer_]; }
  void attend(std::size_t sequence, const LayerMatrices& matrices);
  void project_heads(std::size_t sequence, const float* normed, const std::vector<float>& matrix, std::int64_t heads,
                     const float* norm, bool rotate, std::vector<float>& out) const;
  void attend_head(std::int64_t tokens, const float* query, std::int64_t query_stride, const float* keys,
                   const float* values, std::int64_t key_stride, float* out) const;
  // hidden = (hidden + norm(x matrix^T) * post_norm) * scale
  void add_projection(std::size_t sequence, const float* x, std::int64_t width, const std::vector<float>& matrix,
                      const std::vector<float>& post_norm, float scale);

  const CheckpointFacts& facts_;
  const Checkpoint& checkpoint_;
  Backend& backend_;
  const MatrixProducts& products_;
  const std::vector<std::vector<std::int32_t>>& ids_;
  std::size_t layer_ = 0;
  Norms norms_;
  std::vector<float> cosine_, sine_;           // [longest, live] of the layer
  std::vector<std::vector<float>> hidden_;     // [tokens, hidden] of each sequence
  std::vector<std::vector<float>> attention_;  // [tokens, query heads * head_dim], from attention_input to _output
};

}  // namespace facet::gemma4
