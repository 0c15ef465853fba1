// The pipeline on a GPU: the same likelihoods and ids as on the CPU, whatever the caches, batches and chunks.
#include <gtest/gtest.h>

#include <cstdlib>

#include "facet/backend/cuda_backend.h"
#include "runs.h"
#include "wide_gap.h"

namespace facet::test {
namespace {

// What bf16 activations may change in a mean over thousands of predictions.
constexpr double kNllTolerance = 2e-3;
constexpr double kNarrow = 0.05;

PipelineConfig on_gpu(const std::filesystem::path& model) {
  PipelineConfig config;
  config.model = model;
  config.device = "cuda";
  config.linear = config.dense = "dense_cublas";
  config.attention = "flash_cuda";
  config.sliding = "ring";
  config.global = "paged";
  config.storage = "bf16";
  config.max_sequences = 8;
  config.max_context = 2048;
  config.max_step_tokens = 512;
  return config;
}

PipelineConfig int4_on_gpu() {
  PipelineConfig config =
      on_gpu(std::filesystem::path(FACET_SOURCE_DIR) / "models/gemma4/checkpoints/docs-22m-w4a16-g128");
  config.linear = "dequant_cublas";
  config.linear_to_8 = "w4a16_stream";
  config.linear_to_64 = "w4a16_wgmma";
  return config;
}

std::vector<Request> score_requests(ScorePath path) {
  std::vector<Request> requests;
  for (const Ids& ids : read_id_lines(reference_file("eval_tokens.jsonl")))
    requests.push_back(score_request(ids, path));
  return requests;
}

NllReference score(gemma4::Pipeline& pipeline, ScorePath path) {
  return mean_nll(run_together(pipeline, score_requests(path)));
}

class Cuda : public testing::Test {
 protected:
  void SetUp() override {
    try {
      make_cuda_backend();
    } catch (const Error& error) {
      if (std::getenv("FACET_REQUIRE_GPU") != nullptr) FAIL() << error.full_text();
      GTEST_SKIP() << error.full_text();
    }
  }
};

TEST_F(Cuda, Bf16LikelihoodByPrefillAndByDecode) {
  const NllReference right = nll_reference("draft.fp32");
  for (const char* form : {"shared", "full"}) {  // of the cache of global layers
    PipelineConfig config = on_gpu(embedded_checkpoint());
    config.kv_form = form;
    const auto pipeline = load_pipeline(config);
    for (const ScorePath path : {ScorePath::prefill, ScorePath::decode}) {
      const NllReference nll = score(*pipeline, path);
      fmt::print("docs-5m bf16, {} form, {}: mean NLL {:.6f}, reference {:.6f}\n", form,
                 path == ScorePath::prefill ? "prefill" : "decode", nll.mean, right.mean);
      EXPECT_NEAR(nll.mean, right.mean, kNllTolerance);
      for (const auto& [length, mean] : right.buckets) EXPECT_NEAR(nll.buckets.at(length), mean, 2 * kNllTolerance);
    }
  }
}

// The shared form is what a configuration gets that does not ask; int8 rows do without.
TEST_F(Cuda, SharedFormIsChosenWhereItIsRead) {
  const auto form_of = [](const PipelineConfig& config) {
    return load_pipeline(config)->plan().attention().back()->problem().key_channels;
  };
  PipelineConfig config = on_gpu(embedded_checkpoint());
  EXPECT_EQ(form_of(config), 32);
  config.storage = "i8";
  EXPECT_EQ(form_of(config), 0);
}

TEST_F(Cuda, GreedyIdsAreThoseOfTheReference) {
  const auto pipeline = load_pipeline(on_gpu(embedded_checkpoint()));
  const GreedyReference right = greedy_reference("draft");
  std::vector<Request> requests;
  for (std::size_t i = 0; i < right.prompts.size(); ++i)
    requests.push_back(greedy_request(right.prompts[i], static_cast<std::int64_t>(right.greedy[i].size())));
  const std::vector<RequestResult> results = run_together(*pipeline, requests);
  for (std::size_t i = 0; i < results.size(); ++i)
    EXPECT_TRUE(equal_at_wide_gaps(results[i].ids, right.greedy[i], right.top2_gap[i], kNarrow)) << "prompt " << i;
}

TEST_F(Cuda, Int4LikelihoodIsThatOfTheCpu) {
  PipelineConfig cpu = int4_on_gpu();
  cpu.device = "cpu";
  cpu.linear = "w4a16";
  cpu.dense = "dense";
  cpu.linear_to_8 = "";
  cpu.linear_to_64 = "";
  cpu.attention = "flash";
  const NllReference right = score(*load_pipeline(cpu), ScorePath::prefill);
  const auto pipeline = load_pipeline(int4_on_gpu());
  for (const ScorePath path : {ScorePath::prefill, ScorePath::decode}) {
    const NllReference nll = score(*pipeline, path);
    fmt::print("docs-22m INT4, {}: mean NLL {:.6f}, CPU {:.6f}\n", path == ScorePath::prefill ? "prefill" : "decode",
               nll.mean, right.mean);
    EXPECT_NEAR(nll.mean, right.mean, kNllTolerance);
  }
}

// Every pair of policies, in chunks that are no round numbers, gives the likelihoods of one plain run.
TEST_F(Cuda, CachesAndChunksAgree) {
  const auto plain = load_pipeline(int4_on_gpu());
  const NllReference right = score(*plain, ScorePath::prefill);
  for (const char* sliding : {"static", "ring", "paged"}) {
    for (const char* global : {"static", "paged"}) {
      for (const std::int64_t chunk : {64, 257}) {
        PipelineConfig config = int4_on_gpu();
        config.sliding = sliding;
        config.global = global;
        config.prefill_chunk = chunk;
        const NllReference nll = score(*load_pipeline(config, plain->shared()), ScorePath::prefill);
        EXPECT_NEAR(nll.mean, right.mean, kNllTolerance) << sliding << ", " << global << ", chunk " << chunk;
      }
    }
  }
}

TEST_F(Cuda, Int8KeysAndValuesCostLittle) {
  const auto pipeline = load_pipeline(int4_on_gpu());
  const NllReference right = score(*pipeline, ScorePath::prefill);
  PipelineConfig config = int4_on_gpu();
  config.storage = "i8";
  const NllReference nll = score(*load_pipeline(config, pipeline->shared()), ScorePath::prefill);
  EXPECT_NEAR(nll.mean, right.mean, 2 * kNllTolerance);
  EXPECT_NE(nll.mean, right.mean);  // the storage took effect
  fmt::print("int8 KV changes the mean NLL by {:.6f}\n", nll.mean - right.mean);
}

// Recorded steps for 1 to 8 rows; the same bits each time.
TEST_F(Cuda, RunsRepeatAndCountTheirCalls) {
  const auto pipeline = load_pipeline(int4_on_gpu());
  const GreedyReference prompts = greedy_reference("draft");
  std::vector<Request> requests;
  for (std::size_t i = 0; i < prompts.prompts.size(); ++i)
    requests.push_back(greedy_request(prompts.prompts[i], 5 + 9 * static_cast<std::int64_t>(i)));
  // The same prompts, sampled with seeds of their own.
  for (std::size_t i = 0; i < prompts.prompts.size(); ++i) {
    requests.push_back(requests[i]);
    requests.back().sampling.temperature = 0.8;
    requests.back().sampling.top_p = 0.95;
    requests.back().sampling.seed = i;
  }
  const std::vector<RequestResult> first = run_together(*pipeline, requests);
  const std::vector<RequestResult> second = run_together(*pipeline, requests);
  for (std::size_t i = 0; i < first.size(); ++i) EXPECT_EQ(first[i].ids, second[i].ids) << "request " << i;
  EXPECT_NE(first.back().ids, first[prompts.prompts.size() - 1].ids) << "a sampled request said the greedy ids";
  std::map<std::string, std::int64_t> calls;
  for (const PluginUse& use : pipeline->plugin_use()) calls[use.name] += use.calls;
  // Most steps decode: five kernel calls a layer or so, replayed ones included.
  EXPECT_GT(calls["w4a16_stream"] + calls["w4a16_wgmma"], 1000);
  EXPECT_GT(calls["flash_cuda"], 1000);
}

// Models that share weights and a device replay steps of their own: other kernels, another cache.
TEST_F(Cuda, SharedWeightsKeepStepsApart) {
  PipelineConfig other = int4_on_gpu();
  other.linear_to_8 = other.linear_to_64 = "";
  other.sliding = "static";
  std::vector<Request> requests;
  for (const Ids& prompt : greedy_reference("draft").prompts) requests.push_back(greedy_request(prompt, 24));
  const std::vector<RequestResult> right = run_together(*load_pipeline(other), requests);
  const auto first = load_pipeline(int4_on_gpu());
  const auto second = load_pipeline(other, first->shared());
  const std::vector<RequestResult> mine = run_together(*first, requests);
  for (int round = 0; round < 2; ++round) {
    const std::vector<RequestResult> theirs = run_together(*second, requests);
    for (std::size_t i = 0; i < requests.size(); ++i) EXPECT_EQ(theirs[i].ids, right[i].ids) << "request " << i;
    const std::vector<RequestResult> again = run_together(*first, requests);
    for (std::size_t i = 0; i < requests.size(); ++i) EXPECT_EQ(again[i].ids, mine[i].ids) << "request " << i;
  }
  for (const PluginUse& use : second->plugin_use()) {
    EXPECT_NE(use.name, "w4a16_stream");
    if (use.place == "linear") {
      EXPECT_GT(use.calls, 24) << use.name;
    }
  }
}

// A sequence that grows past 1,024 and 1,536 tokens moves to steps recorded for longer contexts.
TEST_F(Cuda, GrowingContextsKeepTheirLikelihood) {
  Ids ids;
  for (const Ids& line : read_id_lines(reference_file("eval_tokens.jsonl")))
    ids.insert(ids.end(), line.begin(), line.end());
  ASSERT_GT(ids.size(), 1700u);
  ids.resize(1700);
  const auto pipeline = load_pipeline(int4_on_gpu());
  const auto nll = [&](ScorePath path) { return mean_nll(run_together(*pipeline, {score_request(ids, path)})).mean; };
  EXPECT_NEAR(nll(ScorePath::decode), nll(ScorePath::prefill), kNllTolerance);
}

TEST_F(Cuda, PlannedBytesAreAllocatedBytes) {
  const auto pipeline = load_pipeline(int4_on_gpu());
  expect_plan_is_allocated(*pipeline);
}

// Head sizes 256 and 512 with a window of 1,024: logits as the reference has them, within what bf16 allows.
TEST_F(Cuda, Geometry) {
  const auto path = reference_checkpoint("gemma4-geometry");
  if (!path) GTEST_SKIP() << skip_reason("gemma4-geometry");
  const SafetensorsFile file = SafetensorsFile::open(reference_file("geometry-reference.safetensors"));
  PipelineConfig config = on_gpu(*path);
  config.max_context = 2600;
  const auto pipeline = load_pipeline(config);
  for (const int length : {3, 1024, 1025, 2600}) {
    const Ids ids = id_values(file, fmt::format("tokens.{}", length));
    const std::vector<float> right = float_values(file, fmt::format("nll.{}", length));
    const RequestResult scored = run_together(*pipeline, {score_request(ids, ScorePath::prefill)}).front();
    ASSERT_EQ(scored.nll.size(), right.size());
    double worst = 0, sum = 0;
    for (std::size_t i = 0; i < right.size(); ++i) {
      const double change = std::abs(scored.nll[i] - static_cast<double>(right[i]));
      worst = std::max(worst, change);
      sum += change;
    }
    fmt::print("geometry, {} ids: likelihoods deviate by {:.2e} at most, {:.2e} on average\n", length, worst,
               sum / static_cast<double>(right.size()));
    // Two layers round about twenty values of every path to 8 bits; logits reach 30 where they are capped.
    EXPECT_LE(worst, 30 * 20 * 0x1p-9);
  }
}

}  // namespace
}  // namespace facet::test
