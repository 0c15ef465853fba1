// What the parts of a step must move and compute.
#include <gtest/gtest.h>

#include "gemma4/step_parts.h"
#include "runs.h"

namespace facet::test {
namespace {

using gemma4::PartCost;
using gemma4::StepPart;

class StepParts : public testing::Test {
 protected:
  void SetUp() override {
    PipelineConfig config;
    config.model = std::filesystem::path(FACET_SOURCE_DIR) / "models/gemma4/checkpoints/docs-22m-w4a16-g128";
    config.linear = "w4a16";
    config.sliding = "ring";
    config.storage = "bf16";
    config.max_sequences = 4;
    config.max_context = 2048;
    pipeline_ = load_pipeline(config);
  }
  std::vector<PartCost> costs(const gemma4::StepWork& work) const {
    return gemma4::part_costs(pipeline_->plan(), work);
  }
  static const PartCost& of(const std::vector<PartCost>& costs, StepPart part) {
    return costs[static_cast<std::size_t>(part)];
  }

  std::unique_ptr<gemma4::Pipeline> pipeline_;
};

TEST_F(StepParts, AStepReadsEveryWeightOnce) {
  double weights = 0, operations = 0;
  for (const LinearGroup* group : pipeline_->plan().linears()) {
    for (const LinearModule& module : group->modules()) {
      weights += static_cast<double>(gemma4::weight_bytes(module, 1));
      operations += 2.0 * static_cast<double>(module.in_features() * module.out_features());
    }
  }
  const std::vector<PartCost> one = costs({1, 0, 1, 1}), twice = costs({1, 0, 2, 2});
  double bytes = 0, linear_operations = 0, more = 0;
  for (std::size_t i = 0; i < one.size(); ++i) {
    const auto part = static_cast<StepPart>(i);
    if (part == StepPart::sliding_attention || part == StepPart::global_attention) continue;
    bytes += one[i].bytes;
    linear_operations += one[i].operations;
    if (part != StepPart::head) more += twice[i].bytes - 2 * one[i].bytes;
  }
  EXPECT_EQ(linear_operations, operations);
  EXPECT_GT(bytes, weights);
  EXPECT_LT(bytes, 1.1 * weights) << "activations of one row are little beside them";
  EXPECT_EQ(more, 0) << "two passes of one token each are twice one pass";
}

// A prompt at once and token by token are the same products; in between rows are seen again and again.
TEST_F(StepParts, AChunkIsItsTokens) {
  constexpr std::int64_t kContext = 700, kTokens = 300;
  const std::vector<PartCost> whole = costs({2, kContext, kTokens, 1});
  std::vector<PartCost> sum(whole.size());
  for (std::int64_t i = 0; i < kTokens; ++i) {
    const std::vector<PartCost> one = costs({2, kContext + i, 1, 1});
    for (std::size_t part = 0; part < sum.size(); ++part) {
      sum[part].bytes += one[part].bytes;
      sum[part].operations += one[part].operations;
    }
  }
  for (std::size_t part = 0; part < sum.size(); ++part) {
    SCOPED_TRACE(gemma4::part_name(static_cast<StepPart>(part)));
    if (static_cast<StepPart>(part) == StepPart::head) continue;  // of the last token alone
    EXPECT_DOUBLE_EQ(whole[part].operations, sum[part].operations);
    if (static_cast<StepPart>(part) != StepPart::inputs) {
      EXPECT_LT(whole[part].bytes, sum[part].bytes);
    }
  }
}

TEST_F(StepParts, AttentionSeesItsWindow) {
  const gemma4::ModelConfig& model = pipeline_->plan().facts().model;
  double sliding = 0, global = 0, queries = 0;
  constexpr std::int64_t kContext = 1500;
  double operations = 0;
  for (const gemma4::LayerConfig& layer : model.layers) {
    const std::int64_t seen = layer.sliding ? layer.window : kContext + 1;
    ASSERT_LT(layer.window, kContext);
    // Global layers: of a key only the quarter of the channels that turns.
    const std::int64_t keys = layer.sliding ? layer.head_dim : layer.head_dim / 4;
    const auto bytes = static_cast<double>(seen * layer.kv_heads * (layer.head_dim + keys) * 2);  // K and V as bf16
    (layer.sliding ? sliding : global) += bytes;
    queries += 2.0 * static_cast<double>(model.query_heads * layer.head_dim) * sizeof(float);
    operations += 4.0 * static_cast<double>(seen * model.query_heads * layer.head_dim);
  }
  const std::vector<PartCost> one = costs({1, kContext, 1, 1});
  const PartCost &a = of(one, StepPart::sliding_attention), &b = of(one, StepPart::global_attention);
  EXPECT_DOUBLE_EQ(a.bytes + b.bytes, sliding + global + queries);
  EXPECT_DOUBLE_EQ(a.operations + b.operations, operations);
  const std::vector<PartCost> three = costs({3, kContext, 1, 1});
  EXPECT_DOUBLE_EQ(of(three, StepPart::global_attention).bytes, 3 * b.bytes);
}

}  // namespace
}  // namespace facet::test
