// What is planned is what is allocated, to the byte, by category.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>

#include "config_text.h"
#include "gemma4/pipeline.h"
#include "quantize_weight.h"
#include "run_program.h"

namespace facet::cli_test {
namespace {

struct Case {
  const char* name;
  const char* linear;
  const char* kv_cache;
  int bits;  // 16: the embedded checkpoint; 4: quantized from it
  const char* head = "checkpoint";
  const char* engine = "threads = 2\nmax_sequences = 3\nmax_context = 700\nmax_step_tokens = 96";
};

void PrintTo(const Case& config, std::ostream* out) {
  *out << config.name;
}

constexpr const char* kDense = "[linear]\nplugin = \"dense\"";
constexpr const char* kStatic = "[kv_cache]\nplugin = \"static\"";
constexpr const char* kRingPaged = "[kv_cache.sliding]\nplugin = \"ring\"\n[kv_cache.global]\nplugin = \"paged\"";
// Small and large row counts by different kernels, the head by a third.
constexpr const char* kMixed =
    "[linear]\nplugin = \"w4a16\"\n"
    "[[linear.rules]]\nlayers = \"lm_head\"\nplugin = \"dense\"\n"
    "[[linear.rules]]\nlayers = \"*.mlp.*\"\nmin_rows = 33\nplugin = \"dequant_gemm\"\n"
    "[[linear.rules]]\nlayers = \"layers.1.self_attn.k_proj\"\nplugin = \"reference\"\n";

class MemoryPlanTest : public FolderTest, public testing::WithParamInterface<Case> {
 protected:
  std::string quantized() const {
    const std::string out = (folder_ / "int4").string();
    const ProgramResult run = run_facet({"quantize", "--in", embedded_checkpoint().string(), "--out", out});
    EXPECT_EQ(run.exit_code, 0) << run.text();
    return out;
  }
};

TEST_P(MemoryPlanTest, EqualsTheAccountsAfterLoading) {
  ConfigText text;
  text.engine = GetParam().engine;
  text.linear = GetParam().linear;
  text.kv_cache = GetParam().kv_cache;
  if (GetParam().bits == 4) text.model = quantized();
  gemma4::PipelineOptions options;
  options.plugin_dirs = {std::filesystem::path(FACET_BINARY_DIR) / "lib/facet/plugins"};
  options.quantize = cli::quantize_weight;
  Config config = load_config(write("config.toml", text.toml()));
  config.model.head = GetParam().head;
  gemma4::Pipeline pipeline(std::move(config), options);
  const MemoryPlan plan = pipeline.memory();
  for (const MemoryAccount& account : pipeline.shared()->backend->accounts())
    EXPECT_EQ(account.bytes, 0u) << "allocated while planning: " << account.tag;
  pipeline.load();
  std::map<std::string, std::uint64_t> found;
  std::uint64_t total = 0;
  for (const MemoryAccount& account : pipeline.shared()->backend->accounts()) {
    found[account.tag] = account.bytes;
    total += account.bytes;
    EXPECT_EQ(account.peak_bytes, account.bytes) << account.tag << ": more was held while loading";
  }
  EXPECT_EQ(found[kWeightsTag], plan.weights);
  EXPECT_EQ(found[kKvTag], plan.kv());
  EXPECT_EQ(found[kWorkspaceTag], plan.workspace);
  EXPECT_EQ(found[kActivationsTag], plan.activations);
  // Scales, zero codes and converted heads lie in vectors of their own, outside the account.
  const std::uint64_t unpacked = dynamic_cast<gemma4::Gemma4Model&>(pipeline.model()).unpacked_weight_bytes();
  EXPECT_EQ(unpacked, plan.weights_unpacked);
  EXPECT_EQ(total + unpacked, plan.allocated()) << "something has a tag of its own";
  EXPECT_GT(plan.kv_sliding, 0u);
  EXPECT_GT(plan.kv_global, 0u);
  EXPECT_GT(plan.activations, 0u);
}

INSTANTIATE_TEST_SUITE_P(
    Configs, MemoryPlanTest,
    testing::Values(Case{"dense_static", kDense, kStatic, 16}, Case{"dense_ring_paged", kDense, kRingPaged, 16},
                    Case{"dense_ring", kDense,
                         "[kv_cache.sliding]\nplugin = \"ring\"\n[kv_cache.global]\nplugin = \"static\"", 16},
                    Case{"dense_paged", kDense, "[kv_cache]\nplugin = \"paged\"", 16},
                    Case{"paged_pool", kDense,
                         "[kv_cache]\nplugin = \"paged\"\noptions = { block_tokens = 7, pool_tokens = 900 }", 16},
                    Case{"paged_int8", kDense, "[kv_cache]\nplugin = \"paged\"\noptions = { storage = \"i8\" }", 16},
                    Case{"ring_fp32", kDense,
                         "[kv_cache.sliding]\nplugin = \"ring\"\noptions = { storage = \"f32\" }\n"
                         "[kv_cache.global]\nplugin = \"static\"\noptions = { storage = \"i8\" }",
                         16},
                    Case{"reference_bf16", "[linear]\nplugin = \"reference\"", kStatic, 16},
                    Case{"one_token_steps", kDense, kRingPaged, 16, "checkpoint",
                         "threads = 1\nmax_sequences = 1\nmax_context = 1\nmax_step_tokens = 1"},
                    Case{"reference_int4", "[linear]\nplugin = \"reference\"", kStatic, 4},
                    Case{"w4a16", "[linear]\nplugin = \"w4a16\"\nfallback = [\"dense\"]", kRingPaged, 4},
                    Case{"w4a8", "[linear]\nplugin = \"w4a8\"\nfallback = [\"dense\"]", kStatic, 4},
                    Case{"dequant_gemm", "[linear]\nplugin = \"dequant_gemm\"\nfallback = [\"dense\"]", kStatic, 4},
                    Case{"mixed", kMixed, kRingPaged, 4},
                    Case{"packed_head", "[linear]\nplugin = \"w4a16\"\nfallback = [\"dense\"]", kStatic, 16, "int8"},
                    Case{"head_in_place", "[linear]\nplugin = \"reference\"", kStatic, 4, "int4"}),
    [](const testing::TestParamInfo<Case>& param) { return param.param.name; });

class SharedPartsTest : public FolderTest {};

// Variants of one comparison share parts: each plan counts what it needs, and common packed copies exist once.
TEST_F(SharedPartsTest, SharedHoldCommonWeightsOnce) {
  const ConfigText text;
  const std::string config = write("config.toml", text.toml());
  gemma4::PipelineOptions options;
  options.plugin_dirs = {std::filesystem::path(FACET_BINARY_DIR) / "lib/facet/plugins"};
  gemma4::Pipeline first(load_config(config), options);
  first.load();
  gemma4::Pipeline second(load_config(config), options, first.shared());
  second.load();
  std::uint64_t weights = 0, kv = 0;
  for (const MemoryAccount& account : first.shared()->backend->accounts()) {
    if (account.tag == kWeightsTag) weights = account.bytes;
    if (account.tag == kKvTag) kv = account.bytes;
  }
  EXPECT_EQ(kv, first.memory().kv() + second.memory().kv());
  EXPECT_EQ(weights, first.plan().norm_bytes() + second.plan().norm_bytes() + first.shared()->store->bytes());
  EXPECT_EQ(first.memory().weights, first.plan().norm_bytes() + first.shared()->store->bytes());
}

}  // namespace
}  // namespace facet::cli_test
