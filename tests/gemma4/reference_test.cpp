// The 22m checkpoint and the one with the head sizes of the 12B, against the model's own library in fp32.
#include <gtest/gtest.h>

#include <cmath>

#include "direct_run.h"
#include "wide_gap.h"

namespace facet::test {
namespace {

PipelineConfig flash_config(const std::filesystem::path& model) {
  PipelineConfig config;
  config.model = model;
  config.sliding = "ring";
  config.global = "paged";
  config.max_sequences = 8;
  config.max_context = 2048;
  config.max_step_tokens = 512;
  return config;
}

// Both sides round to fp32 after every operation, in different orders. A layer's dot products have at most `width`
// terms; randomly signed roundings of 2^-24 add up to sqrt(width) of them relative to the sum, and each layer passes
// on what it got, so hidden states deviate by about layers * sqrt(width) * 2^-24. The factor covers the worst of many
// thousand elements (5 sigma) and the norms between, which divide by the root mean square.
double tolerance(std::int64_t layers, std::int64_t width) {
  return 10.0 * static_cast<double>(layers + 1) * std::sqrt(static_cast<double>(width)) * std::ldexp(1.0, -24);
}

class Reference22m : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    if (const auto path = reference_checkpoint("gemma4-docs-22m")) pipeline_ = load_pipeline(flash_config(*path));
  }
  static void TearDownTestSuite() { pipeline_.reset(); }
  void SetUp() override {
    if (!pipeline_) GTEST_SKIP() << skip_reason("gemma4-docs-22m");
  }
  static inline std::unique_ptr<gemma4::Pipeline> pipeline_;
};

TEST_F(Reference22m, Likelihood) {
  const NllReference right = nll_reference("tiny.fp32");
  EXPECT_NEAR(right.mean, 2.229446, 1e-6);
  std::vector<Request> requests;
  for (const Ids& ids : read_id_lines(reference_file("eval_tokens.jsonl")))
    requests.push_back(score_request(ids, ScorePath::prefill));
  const NllReference nll = mean_nll(run_together(*pipeline_, requests));
  fmt::print("mean NLL {:.7f}, reference {:.7f}\n", nll.mean, right.mean);
  EXPECT_NEAR(nll.mean, right.mean, 2e-4);
  for (const auto& [length, mean] : right.buckets) EXPECT_NEAR(nll.buckets.at(length), mean, 5e-4) << length;
  ASSERT_EQ(nll.sequences.size(), right.sequences.size());
  for (std::size_t i = 0; i < right.sequences.size(); ++i)
    EXPECT_NEAR(nll.sequences[i], right.sequences[i], 5e-4) << "sequence " << i;
}

TEST_F(Reference22m, GreedyIds) {
  const GreedyReference right = greedy_reference("tiny");
  std::vector<Request> requests;
  for (std::size_t i = 0; i < right.prompts.size(); ++i)
    requests.push_back(greedy_request(right.prompts[i], static_cast<std::int64_t>(right.greedy[i].size())));
  const std::vector<RequestResult> results = run_together(*pipeline_, requests);
  for (std::size_t i = 0; i < results.size(); ++i)
    EXPECT_TRUE(equal_at_wide_gaps(results[i].ids, right.greedy[i], right.top2_gap[i], 1e-3)) << "prompt " << i;
}

// Hidden states after every layer and logits; the reference holds the last rows of its longer prompts.
TEST_F(Reference22m, Activations) {
  const SafetensorsFile file = SafetensorsFile::open(reference_file("activations.safetensors"));
  const auto& model = pipeline_->plan().facts().model;
  const auto layers = static_cast<std::int64_t>(model.layers.size());
  const double allowed = tolerance(layers, model.feed_forward);
  double worst_hidden = 0, worst_logit = 0;
  for (const std::string prompt : {"short", "window_edge", "long"}) {
    const DirectRun run = run_directly(*pipeline_, id_values(file, prompt + ".tokens"), 200);
    // The library's last entry is what the final norm made of the last layer; logits stand for it here.
    for (std::int64_t layer = 0; layer < layers; ++layer) {
      const std::vector<float>& hidden = run.hidden[static_cast<std::size_t>(layer)];
      const std::vector<float> right = float_values(file, fmt::format("{}.hidden.{}", prompt, layer));
      const Deviation worst = deviation(hidden, hidden.size() - right.size(), right);
      EXPECT_LE(worst.relative, allowed) << prompt << ", layer " << layer << ", element " << worst.at;
      worst_hidden = std::max(worst_hidden, worst.relative);
    }
    const std::vector<float> right = float_values(file, prompt + ".logits");
    const Deviation worst = deviation(run.logits, run.logits.size() - right.size(), right);
    EXPECT_LE(worst.relative, allowed) << prompt << ", logit " << worst.at;
    worst_logit = std::max(worst_logit, worst.relative);
  }
  fmt::print("hidden states deviate by {:.2e}, logits by {:.2e}, allowed {:.2e}\n", worst_hidden, worst_logit, allowed);
}

// Head sizes 256 and 512, 16 query heads, window 1,024, at lengths below, at, one above and far above the window.
class Geometry : public testing::TestWithParam<std::int64_t> {};

TEST_P(Geometry, LogitsAndLikelihood) {
  const auto path = reference_checkpoint("gemma4-geometry");
  if (!path) GTEST_SKIP() << skip_reason("gemma4-geometry");
  const SafetensorsFile file = SafetensorsFile::open(reference_file("geometry-reference.safetensors"));
  const std::string length = std::to_string(GetParam());
  const Ids ids = id_values(file, "tokens." + length);
  ASSERT_EQ(static_cast<std::int64_t>(ids.size()), GetParam());
  const std::vector<float> right_logits = float_values(file, "logits." + length);
  const std::vector<float> right_nll = float_values(file, "nll." + length);
  PipelineConfig config = flash_config(*path);
  config.max_context = 2600;
  config.max_sequences = 1;
  const auto pipeline = load_pipeline(config);
  // Attention sums up to 2,600 terms, more than any linear layer here.
  const double allowed = tolerance(2, GetParam() + 512);
  const DirectRun run = run_directly(*pipeline, ids, 512);
  const Deviation worst = deviation(run.logits, run.logits.size() - right_logits.size(), right_logits);
  EXPECT_LE(worst.relative, allowed) << "logit " << worst.at;
  const RequestResult scored = run_together(*pipeline, {score_request(ids, ScorePath::prefill)}).front();
  ASSERT_EQ(scored.nll.size(), right_nll.size());
  double worst_nll = 0;
  for (std::size_t i = 0; i < right_nll.size(); ++i)
    worst_nll = std::max(worst_nll, std::abs(scored.nll[i] - static_cast<double>(right_nll[i])));
  // A likelihood moves by at most twice the largest change of a logit, which is `allowed` of their size.
  double largest = 0;
  for (const float x : right_logits) largest = std::max(largest, std::abs(static_cast<double>(x)));
  EXPECT_LE(worst_nll, 2 * allowed * largest);
  fmt::print("{} ids: logits deviate by {:.2e} (allowed {:.2e}), likelihoods by {:.2e} (allowed {:.2e})\n", length,
             worst.relative, allowed, worst_nll, 2 * allowed * largest);
}

INSTANTIATE_TEST_SUITE_P(Lengths, Geometry, testing::Values(3, 1024, 1025, 2600));

}  // namespace
}  // namespace facet::test
