// Cache policies and forms, attention plugins, schedulers, chunks and paths change what a run costs, never what it
// says. FACET_FULL_PRODUCT=1 tries all 672 combinations instead of a set that covers every pair.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>

#include "combinations.h"
#include "runs.h"
#include "wide_gap.h"

namespace facet::test {
namespace {

// Longer than window + chunk - 1 of every chunk but the whole, so that rings wrap; longer than the window; shorter.
constexpr std::size_t kLengths[] = {600, 300, 129};
constexpr std::int64_t kStepTokens = 1040;  // all of them whole in one step
// Rounding: hidden states of some 1e3 additions in fp32 (2^-24 each, randomly signed: 2e-6 relative) through three
// layers, times logits of up to 30. A key too many or too few moves a prediction by 1e-2 and more.
constexpr double kTokenTolerance = 1e-4;
constexpr std::int64_t kGreedyTokens = 12;

std::vector<Ids> sequences() {
  const std::vector<Ids> all = read_id_lines(reference_file("eval_tokens.jsonl"));
  std::vector<Ids> chosen;
  // From the two longest and one more, so that none is a part of another.
  for (std::size_t i = 0; i < std::size(kLengths); ++i) {
    const Ids& ids = all[all.size() - 1 - i];
    chosen.emplace_back(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(kLengths[i]));
  }
  return chosen;
}

PipelineConfig to_config(const Combination& c) {
  const auto at = [&](std::size_t axis) { return static_cast<std::size_t>(c[axis]); };
  PipelineConfig config;
  config.model = embedded_checkpoint();
  config.sliding = kSlidingPolicies[at(0)];
  config.global = kGlobalPolicies[at(1)];
  config.attention = kAttentions[at(2)];
  config.scheduler = kSchedulers[at(3)];
  config.prefill_chunk = kChunks[at(4)];
  config.kv_form = kForms[at(6)];
  config.max_sequences = 4;
  config.max_context = 640;
  config.max_step_tokens = kStepTokens;
  return config;
}

class Combinations : public testing::Test {
 protected:
  // Every sequence alone, whole, through static caches in the full form and the reference attention.
  static void SetUpTestSuite() {
    PipelineConfig config = to_config({});
    config.prefill_chunk = 0;
    config.kv_form = "full";
    const auto pipeline = load_pipeline(config);
    shared_ = pipeline->shared();
    for (const Ids& ids : sequences())
      alone_.push_back(run_together(*pipeline, {score_request(ids, ScorePath::prefill)}).front());
  }
  static void TearDownTestSuite() {
    alone_.clear();
    shared_.reset();
  }

  void compare(const Combination& combination);
  void compare_greedy(gemma4::Pipeline& pipeline);

  static inline std::shared_ptr<gemma4::SharedParts> shared_;
  static inline std::vector<RequestResult> alone_;
  double worst_mean_ = 0, worst_token_ = 0;
};

void Combinations::compare(const Combination& combination) {
  SCOPED_TRACE(to_string(combination));
  const ScorePath path = combination[5] == 0 ? ScorePath::prefill : ScorePath::decode;
  const auto pipeline = load_pipeline(to_config(combination), shared_);
  std::vector<Request> requests;
  for (const Ids& ids : sequences()) requests.push_back(score_request(ids, path));
  const std::vector<RequestResult> together = run_together(*pipeline, requests);
  for (std::size_t i = 0; i < together.size(); ++i) {
    ASSERT_EQ(together[i].nll.size(), kLengths[i] - 1);
    double sum = 0, right = 0;
    for (std::size_t t = 0; t < together[i].nll.size(); ++t) {
      const double difference = std::abs(together[i].nll[t] - alone_[i].nll[t]);
      worst_token_ = std::max(worst_token_, difference);
      EXPECT_LE(difference, kTokenTolerance) << "sequence " << i << ", prediction " << t;
      sum += together[i].nll[t];
      right += alone_[i].nll[t];
    }
    worst_mean_ = std::max(worst_mean_, std::abs(sum - right) / right);
    EXPECT_NEAR(sum, right, 1e-5 * right) << "sequence " << i;
  }
  compare_greedy(*pipeline);
}

void Combinations::compare_greedy(gemma4::Pipeline& pipeline) {
  const GreedyReference right = greedy_reference("draft");
  const std::size_t chosen[] = {0, 1, 2, 4};  // prompts of 5, 24, 200 and 256 ids
  std::vector<Request> requests;
  for (const std::size_t i : chosen) requests.push_back(greedy_request(right.prompts[i], kGreedyTokens));
  const std::vector<RequestResult> results = run_together(pipeline, requests);
  for (std::size_t r = 0; r < results.size(); ++r) {
    const std::size_t i = chosen[r];
    const Ids ids(right.greedy[i].begin(), right.greedy[i].begin() + kGreedyTokens);
    EXPECT_TRUE(equal_at_wide_gaps(results[r].ids, ids, right.top2_gap[i], 1e-3))
        << "prompt of " << right.prompts[i].size();
  }
}

TEST_F(Combinations, SayTheSame) {
  const char* full = std::getenv("FACET_FULL_PRODUCT");
  const std::vector<Combination> chosen =
      full != nullptr && std::string(full) == "1" ? full_product() : pairwise_cover();
  EXPECT_GE(chosen.size(), 21u);
  for (const Combination& combination : chosen) {
    compare(combination);
    if (HasFatalFailure()) return;
  }
  fmt::print("{} combinations: means differ by at most {:.2e} relative, predictions by {:.2e}\n", chosen.size(),
             worst_mean_, worst_token_);
}

// Field report 31: what lay in the pool before is never part of a result, not even times 0.
TEST_F(Combinations, NanAndZeroPoolsGiveTheSameBits) {
  for (const char* storage : {"f32", "bf16", "i8"}) {
    for (const auto& [sliding, global] : {std::pair{"ring", "paged"}, {"paged", "static"}, {"static", "paged"}}) {
      for (const char* attention : kAttentions) {
        for (const char* form : kForms) {
          PipelineConfig config = to_config({});
          config.sliding = sliding;
          config.global = global;
          config.attention = attention;
          config.storage = storage;
          config.kv_form = form;
          config.prefill_chunk = 50;
          const Ids ids = sequences().back();
          const auto nll = [&](int pool_byte) {
            const auto pipeline = load_pipeline(config, shared_, pool_byte);
            return run_together(*pipeline, {score_request(ids, ScorePath::prefill),
                                            score_request({ids.begin(), ids.begin() + 33}, ScorePath::decode)});
          };
          const std::vector<RequestResult> dirty = nll(kNanByte), clean = nll(0);
          for (std::size_t i = 0; i < 2; ++i)
            EXPECT_EQ(dirty[i].nll, clean[i].nll)
                << storage << ", " << sliding << ", " << global << ", " << attention << ", " << form;
        }
      }
    }
  }
}

}  // namespace
}  // namespace facet::test
