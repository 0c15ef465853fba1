// INT4: the embedded checkpoint through every kernel, and what round-to-nearest costs on the bf16 original.
#include <gtest/gtest.h>
#include <unistd.h>

#include "quantize_weight.h"
#include "runs.h"

namespace facet::test {
namespace {

double eval_nll(const std::filesystem::path& model, const std::string& linear,
                const std::shared_ptr<gemma4::SharedParts>& shared = nullptr) {
  PipelineConfig config;
  config.model = model;
  config.linear = linear;
  config.sliding = "ring";
  config.global = "paged";
  config.max_sequences = 8;
  config.max_context = 2048;
  const auto pipeline = load_pipeline(config, shared);
  std::vector<Request> requests;
  for (const Ids& ids : read_id_lines(reference_file("eval_tokens.jsonl")))
    requests.push_back(score_request(ids, ScorePath::prefill));
  return mean_nll(run_together(*pipeline, requests)).mean;
}

std::filesystem::path embedded_int4() {
  return std::filesystem::path(FACET_SOURCE_DIR) / "models/gemma4/checkpoints/docs-22m-w4a16-g128";
}

// fp32 activations: two kernels of different arithmetic agree to rounding, and give what the checkpoint's README
// states.
TEST(EmbeddedInt4, LikelihoodThroughEveryKernel) {
  const double w4a16 = eval_nll(embedded_int4(), "w4a16");
  EXPECT_NEAR(w4a16, 2.2579, 2e-4);
  // The bf16 original has 2.2294.
  EXPECT_LE(w4a16, 2.2594);
  // int8 activations may cost 0.005, bf16 ones (8 bits of mantissa instead of about 7 and a scale a group) no more.
  const double w4a8 = eval_nll(embedded_int4(), "w4a8");
  EXPECT_LE(w4a8, w4a16 + 0.005);
  EXPECT_GE(w4a8, w4a16 - 0.005);
  EXPECT_NEAR(eval_nll(embedded_int4(), "dequant_gemm"), w4a16, 0.005);
  fmt::print("w4a16 {:.6f}, w4a8 {:.6f}\n", w4a16, w4a8);
}

struct Recipe {
  const char* name;
  std::int64_t group;
  bool symmetric;
  bool search;
  double low, high;  // of the mean NLL
};

class RoundToNearest : public testing::TestWithParam<Recipe> {};

TEST_P(RoundToNearest, CostsWhatAnIndependentQuantizerReached) {
  const auto original = reference_checkpoint("gemma4-docs-22m");
  if (!original) GTEST_SKIP() << skip_reason("gemma4-docs-22m");
  const std::filesystem::path out =
      std::filesystem::path(testing::TempDir()) / fmt::format("facet-{}-{}", GetParam().name, getpid());
  QuantizeJob job;
  job.in = *original;
  job.out = out;
  job.linear = {4, GetParam().symmetric, GetParam().group};
  job.quantize = [](const DenseMatrix& matrix, const QuantizationScheme& scheme) {
    return cli::quantize_matrix(matrix, scheme, GetParam().search);
  };
  quantize_checkpoint(job);
  const double nll = eval_nll(out, "w4a16");
  std::filesystem::remove_all(out);
  EXPECT_GE(nll, GetParam().low);
  EXPECT_LE(nll, GetParam().high);
  fmt::print("{}: mean NLL {:.6f}\n", GetParam().name, nll);
}

INSTANTIATE_TEST_SUITE_P(Recipes, RoundToNearest,
                         testing::Values(Recipe{"g128_symmetric", 128, true, false, 2.3013, 2.3073},
                                         Recipe{"g128_searched", 128, true, true, 2.2294, 2.286},
                                         Recipe{"g32_asymmetric", 32, false, false, 2.2586, 2.2646}),
                         [](const testing::TestParamInfo<Recipe>& param) { return param.param.name; });

}  // namespace
}  // namespace facet::test
