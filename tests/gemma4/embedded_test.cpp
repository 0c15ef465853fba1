// The embedded 5m checkpoint against the model's own library, and how much int8 keys and values cost.
#include <gtest/gtest.h>

#include "runs.h"
#include "wide_gap.h"

namespace facet::test {
namespace {

PipelineConfig embedded(const std::string& storage) {
  PipelineConfig config;
  config.model = embedded_checkpoint();
  config.sliding = "ring";
  config.global = "paged";
  config.storage = storage;
  config.max_sequences = 8;
  config.max_context = 2048;
  config.max_step_tokens = 512;
  return config;
}

std::vector<Request> eval_requests() {
  std::vector<Request> requests;
  for (const Ids& ids : read_id_lines(reference_file("eval_tokens.jsonl")))
    requests.push_back(score_request(ids, ScorePath::prefill));
  return requests;
}

class Embedded : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    pipeline_ = load_pipeline(embedded("f32"));
    nll_ = mean_nll(run_together(*pipeline_, eval_requests()));
  }
  static void TearDownTestSuite() { pipeline_.reset(); }

  static inline std::unique_ptr<gemma4::Pipeline> pipeline_;
  static inline NllReference nll_;
};

TEST_F(Embedded, LikelihoodIsThatOfTheReference) {
  const NllReference right = nll_reference("draft.fp32");
  EXPECT_NEAR(right.mean, 2.781305, 1e-6);
  EXPECT_NEAR(nll_.mean, right.mean, 2e-4);
  ASSERT_EQ(nll_.buckets.size(), right.buckets.size());
  for (const auto& [length, mean] : right.buckets) EXPECT_NEAR(nll_.buckets.at(length), mean, 5e-4) << length;
  ASSERT_EQ(nll_.sequences.size(), right.sequences.size());
  for (std::size_t i = 0; i < right.sequences.size(); ++i)
    EXPECT_NEAR(nll_.sequences[i], right.sequences[i], 5e-4) << "sequence " << i;
  RecordProperty("mean_nll", fmt::format("{:.7f}", nll_.mean));
  fmt::print("mean NLL {:.7f}, reference {:.7f}\n", nll_.mean, right.mean);
}

TEST_F(Embedded, GreedyIdsAreThoseOfTheReference) {
  const GreedyReference right = greedy_reference("draft");
  std::vector<Request> requests;
  for (std::size_t i = 0; i < right.prompts.size(); ++i)
    requests.push_back(greedy_request(right.prompts[i], static_cast<std::int64_t>(right.greedy[i].size())));
  const std::vector<RequestResult> results = run_together(*pipeline_, requests);
  for (std::size_t i = 0; i < results.size(); ++i)
    EXPECT_TRUE(equal_at_wide_gaps(results[i].ids, right.greedy[i], right.top2_gap[i], 1e-3)) << "prompt " << i;
}

TEST_F(Embedded, Int8KeysAndValuesCostLittle) {
  const auto int8 = load_pipeline(embedded("i8"), pipeline_->shared());
  const NllReference nll = mean_nll(run_together(*int8, eval_requests()));
  EXPECT_LE(nll.mean - nll_.mean, 0.002);
  // They are another number: the storage took effect.
  EXPECT_NE(nll.mean, nll_.mean);
  fmt::print("int8 KV adds {:.6f}\n", nll.mean - nll_.mean);
}

TEST_F(Embedded, PlannedBytesAreAllocatedBytes) {
  const auto pipeline = load_pipeline(embedded("bf16"));
  expect_plan_is_allocated(*pipeline);
}

}  // namespace
}  // namespace facet::test
