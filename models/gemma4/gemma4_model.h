// The Gemma 4 layer program: norm -> linear -> attention -> linear -> norm -> gated feed-forward, over one ragged
// batch.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "facet/engine/model.h"
#include "gemma4/gemma4_plan.h"
#include "gemma4/weight_source.h"

namespace facet::gemma4 {

enum class StepPart : std::int32_t;

// Quantizes a bf16 matrix in memory, for `model.head = "int8" | "int4"`.
using QuantizeWeight = std::function<LinearWeight(const LinearWeight& weight, const LinearFormat& format)>;

// Reads weights as a plan with these facts asks for them; facts, source and quantize must outlive it.
LoadWeight weight_loader(const CheckpointFacts& facts, const WeightSource& source, const QuantizeWeight& quantize);

class Gemma4Model final : public Model {
 public:
  // Reads and packs the weights of `plan`. Every parameter of the model is read exactly once or this throws
  // Error(checkpoint) with the list. plan, source, backend and store must outlive the model. `progress(done,
  // total)` is called after each module; may be empty.
  Gemma4Model(ModelPlan& plan, const WeightSource& source, Backend& backend, WeightStore& store,
              const QuantizeWeight& quantize, const std::function<void(std::size_t, std::size_t)>& progress);
  ~Gemma4Model() override { backend_.forget_recorded(this); }
  Gemma4Model(const Gemma4Model&) = delete;
  Gemma4Model& operator=(const Gemma4Model&) = delete;

  std::int64_t vocabulary() const override { return plan_.facts().model.vocabulary; }
  std::int64_t max_step_tokens() const override { return plan_.max_step_tokens(); }
  std::int64_t max_logit_rows() const override { return plan_.logit_rows(); }
  KvManager& kv() override { return plan_.kv(); }
  void forward(const StepInput& input) override;
  const float* logits(std::span<const std::int32_t> rows) override;
  std::vector<std::int32_t> choose(std::span<const std::int32_t> rows, std::span<const RowSampling> how) override;
  bool begin_choice(std::span<const RowSampling> how) override;
  std::vector<std::int32_t> end_choice() override;
  std::vector<PluginUse> plugin_use() const override;
  std::int64_t kernel_nanoseconds() const override;
  // Equals MemoryPlan::weights_unpacked.
  std::uint64_t unpacked_weight_bytes() const;

 private:
  struct LayerWeights {
    const float* input_norm;
    const float* query_norm;
    const float* key_norm;
    const float* post_attention_norm;
    const float* pre_feed_forward_norm;
    const float* post_feed_forward_norm;
    const float* inverse_frequency;
    float scalar;
  };

  void load_vectors(const WeightSource& source);
  void load_linears(const WeightSource& source, WeightStore& store, const QuantizeWeight& quantize,
                    const std::function<void(std::size_t, std::size_t)>& progress);
  using Observer = std::function<void(std::int32_t, const float*)>;
  // All layers; the update of the last one still waits.
  void run_layers(const Observer& observer);
  void enter(StepPart part);
  void show_hidden(const Observer& observer, std::size_t layer);
  // The residual stream with `update` added (after its norm), and the norm in front of what follows.
  ResidualInput residual(const float* post_norm, float scale, const float* next_norm);
  ResidualInput last_residual(const float* next_norm);
  void attend(std::size_t index);
  void feed_forward(std::size_t index);
  void run_head(const std::int32_t* rows, std::int64_t count);
  // Puts the logits of `rows` in their place, without their cap, unless the last decoding step left them there: then
  // false.
  bool compute_logits(std::span<const std::int32_t> rows);
  // The cap that the logits in place still need; 0: none.
  float cap() const { return uncapped_rows_ > 0 ? plan_.facts().model.soft_cap : 0.0f; }
  // Tokens of the rows whose logits are in place. The most probable ones may be there already.
  void choose_rows(std::span<const RowSampling> how, bool have_best);
  // Counters of all plugins that a step calls.
  std::vector<CallCounter*> counters() const;
  template <typename T = void>
  T* at(std::uint64_t offset) const {
    return reinterpret_cast<T*>(activations_.as<char>() + offset);
  }
  float* hidden() const { return at<float>(plan_.activations().hidden[current_]); }

  ModelPlan& plan_;
  Backend& backend_;
  LinearWeight embedding_;
  PlacedWeight table_;
  DeviceBuffer vectors_;
  DeviceBuffer activations_;
  Workspace workspace_;
  std::vector<LayerWeights> layers_;
  const float* final_norm_ = nullptr;
  std::int64_t tokens_ = 0;         // of the last forward, padding included
  int current_ = 0;                 // which of the two hidden states is the newest
  bool updated_ = false;            // `update` still waits to be added to it
  bool has_logits_ = false;         // the last forward computed the logits of all its rows
  std::int64_t uncapped_rows_ = 0;  // of logits in place: what chooses tokens caps on the way, logits() all of them
  std::int64_t chosen_rows_ = 0;    // that begin_choice() asked for
  std::map<std::int64_t, std::vector<std::int64_t>> recorded_calls_;  // of a recorded step, by counter
};

}  // namespace facet::gemma4
