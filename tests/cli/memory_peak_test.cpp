// What the process takes beyond its plan.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "config_text.h"
#include "run_program.h"

namespace facet::cli_test {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif
#else
constexpr bool kSanitized = false;
#endif

// Program, libraries, tokenizer and threads, and pages of the checkpoint that packing has not given back yet.
constexpr std::int64_t kAllowedBeyondPlan = 40 * 1000 * 1000;

constexpr const char* kDense = "[linear]\nplugin = \"dense\"";

class MemoryPeakTest : public FolderTest {
 protected:
  void check(const std::string& model, const std::string& linear) const {
    if (kSanitized) GTEST_SKIP() << "sanitizers keep shadow memory and freed blocks; run it in an ordinary build";
    ConfigText text;
    text.model = model;
    text.linear = linear;
    text.engine = "threads = 2\nmax_sequences = 2\nmax_context = 1024\nmax_step_tokens = 128";
    text.kv_cache = "[kv_cache.sliding]\nplugin = \"ring\"\n[kv_cache.global]\nplugin = \"paged\"";
    const ProgramResult run =
        run_facet({"run", write("config.toml", text.toml()), "--prompt", "The documentation describes how",
                   "--max-tokens", "32", "--greedy", "--ignore-eos", "--json"});
    ASSERT_EQ(run.exit_code, 0) << run.text();
    const Json memory = run.json()["record"]["memory"];
    const auto planned = memory["allocated"].get<std::int64_t>() + memory["weights_mapped"].get<std::int64_t>();
    EXPECT_LE(run.peak_rss_bytes - planned, kAllowedBeyondPlan)
        << fmt::format("peak {} bytes, planned {}: {}", run.peak_rss_bytes, planned, memory.dump());
    RecordProperty("peak_rss_bytes", std::to_string(run.peak_rss_bytes));
    RecordProperty("planned_bytes", std::to_string(planned));
  }
};

TEST_F(MemoryPeakTest, EmbeddedCheckpoint) {
  check("", kDense);
}

// Packed copies replace the file's pages instead of adding to them.
TEST_F(MemoryPeakTest, PackedCheckpoint) {
  check((std::filesystem::path(FACET_SOURCE_DIR) / "models/gemma4/checkpoints/docs-22m-w4a16-g128").string(),
        "[linear]\nplugin = \"w4a8\"\nfallback = [\"dense\"]");
}

TEST_F(MemoryPeakTest, LargerCheckpoint) {
  const std::filesystem::path model = reference_checkpoint("gemma4-docs-22m");
  if (model.empty())
    GTEST_SKIP() << "models/gemma4-docs-22m is absent; set FACET_REFERENCE_DIR to the folder that holds it";
  check(model.string(), kDense);
}

}  // namespace
}  // namespace facet::cli_test
