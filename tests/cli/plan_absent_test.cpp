// facet plan and facet explain for a GPU that is not here. The plugins are fixtures whose device no machine has.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <set>

#include "config_text.h"
#include "run_program.h"

namespace facet::cli_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr std::uint64_t kCounterBytes = 64;  // beside the workspace, rule 5.12 of framework/README.md

// Also hides the GPU of a machine that has one.
const std::vector<std::pair<std::string, std::string>> kNoCuda = {
    {"FACET_CUDA_LIBRARY", "/nonexistent/libfacet_cuda.so"}};

std::string fixture(const std::string& name) {
  return fmt::format("plugin = \"{}/{}.so\"", FACET_FIXTURE_DIR, name);
}

ConfigText absent_config() {
  ConfigText text;
  text.engine = "device = \"cuda\"\n" + text.engine;
  text.linear = "[linear]\n" + fixture("linear_absent");
  text.attention = "[attention]\n" + fixture("attention_absent");
  return text;
}

class PlanAbsentTest : public FolderTest {
 protected:
  ProgramResult facet(std::vector<std::string> words, const ConfigText& text) const {
    words.insert(words.begin() + 1, write("config.toml", text.toml()));
    return run_facet(words, {}, kNoCuda);
  }
};

TEST_F(PlanAbsentTest, SizesAreThoseThePluginsGive) {
  const ProgramResult run = facet({"plan", "--json"}, absent_config());
  ASSERT_EQ(run.exit_code, 0) << run.text();
  const Json plan = run.json();
  EXPECT_THAT(plan["device_absent"].get<std::string>(),
              AllOf(HasSubstr("/nonexistent/libfacet_cuda.so"), Not(HasSubstr("engine.device"))));
  EXPECT_TRUE(plan["left_out"].empty());
  // 64 rows of a step; attention asks for more of the shared workspace than any matrix. Counters lie beside it.
  EXPECT_EQ(plan["workspace"].get<std::uint64_t>(), (std::uint64_t{64} << 17) + kCounterBytes);
  // The same shapes as on the CPU: 256 rows of 2 sequences, as in PlanTest.
  EXPECT_EQ(plan["kv_sliding"], 2 * 2 * 64 * 256 * 2 * 2 * 2);
  // Each matrix at 3 bytes a weight; beside them the embedding and the norms are on the GPU.
  const Json explained = facet({"explain", "--json"}, absent_config()).json();
  std::int64_t packed = 0;
  for (const Json& module : explained["linear"]) {
    ASSERT_EQ(module["choices"].size(), 1u);
    const Json& choice = module["choices"][0];
    EXPECT_EQ(choice["planned"], true);
    EXPECT_EQ(choice["packed_bytes"].get<std::int64_t>(),
              3 * module["out_features"].get<std::int64_t>() * module["in_features"].get<std::int64_t>());
    packed += choice["packed_bytes"].get<std::int64_t>();
  }
  EXPECT_GT(plan["weights"].get<std::int64_t>(), packed);
  std::int64_t sum = 0;
  for (const char* part : {"weights", "kv_sliding", "kv_global", "workspace", "activations"})
    sum += plan[part].get<std::int64_t>();
  EXPECT_EQ(plan["total"], sum);
}

TEST_F(PlanAbsentTest, TheTextSaysWhatItIsWorth) {
  const ProgramResult whole = facet({"plan"}, absent_config());
  ASSERT_EQ(whole.exit_code, 0) << whole.text();
  EXPECT_THAT(whole.out, AllOf(HasSubstr("planned for a GPU that is not here"), HasSubstr("its memory is not known"),
                               HasSubstr("a GPU gives the same numbers"), Not(HasSubstr("left out"))));
  const ProgramResult explained = facet({"explain", "--all"}, absent_config());
  ASSERT_EQ(explained.exit_code, 0) << explained.text();
  EXPECT_THAT(explained.out, AllOf(HasSubstr("device cuda, not here"), HasSubstr("planned for a GPU"),
                                   HasSubstr("layout 'fixture.absent'"), Not(HasSubstr("not asked"))));
}

// Their instances would end the program.
TEST_F(PlanAbsentTest, PluginsThatNeedTheDeviceAreLeftOut) {
  ConfigText text = absent_config();
  text.linear += "\n[[linear.rules]]\nmax_rows = 4\n" + fixture("linear_absent_unplanned");
  text.attention = "[attention]\n" + fixture("attention_absent_unplanned");
  const ProgramResult run = facet({"plan", "--json"}, text);
  ASSERT_EQ(run.exit_code, 0) << run.text();
  const Json plan = run.json(), whole = facet({"plan", "--json"}, absent_config()).json();
  ASSERT_EQ(plan["left_out"].size(), 2u);
  EXPECT_THAT(undocumented_keys(plan), testing::IsEmpty());
  EXPECT_EQ(plan["left_out"][0]["plugin"], "absent_unplanned");
  EXPECT_EQ(plan["left_out"][0]["kind"], "linear");
  EXPECT_EQ(plan["left_out"][1]["kind"], "attention");
  EXPECT_EQ(plan["left_out"][1]["places"], 2);
  // More rows are served as before, and the matrices' workspace is what remains.
  EXPECT_EQ(plan["weights"], whole["weights"]);
  EXPECT_EQ(plan["workspace"].get<std::uint64_t>(), (std::uint64_t{64} << 16) + kCounterBytes);
  EXPECT_EQ(plan["kv_sliding"], whole["kv_sliding"]);
  const ProgramResult words = facet({"plan"}, text);
  EXPECT_THAT(words.out, AllOf(HasSubstr("linear plugin 'absent_unplanned' plans only on its device"),
                               HasSubstr("the total is a lower bound"), Not(HasSubstr("the same numbers"))));
  const ProgramResult explained = facet({"explain", "--all"}, text);
  ASSERT_EQ(explained.exit_code, 0) << explained.text();
  EXPECT_THAT(explained.out, AllOf(HasSubstr("rows 1-4: absent_unplanned"), HasSubstr("not asked"),
                                   HasSubstr("rows 5-64: absent 1.0.0")));
}

std::string rows_and_fusions(const Json& module) {
  std::string text;
  for (const Json& choice : module["choices"]) {
    EXPECT_EQ(choice["rule"], "linear");
    text += fmt::format("{}-{}:{};", choice["min_rows"].get<int>(), choice["max_rows"].get<int>(),
                        choice["fused"].get<std::string>());
  }
  return text;
}

// One rule is enough for a plugin that fuses more at fewer rows, or at more.
TEST_F(PlanAbsentTest, RowsOfARuleAreDividedWhereFusionsEnd) {
  ConfigText text = absent_config();
  text.linear = "[linear]\n" + fixture("linear_absent_fusing");
  const ProgramResult run = facet({"explain", "--json"}, text);
  ASSERT_EQ(run.exit_code, 0) << run.text();
  const Json explained = run.json();
  std::set<std::string> divisions;
  for (const Json& module : explained["linear"]) divisions.insert(rows_and_fusions(module));
  EXPECT_THAT(divisions,
              testing::UnorderedElementsAre("1-64:;",  // o, down
                                            "1-3:residual norm;4-39:;40-64:residual norm;",
                                            "1-1:residual norm, GELU gate;2-3:residual norm;4-5:GELU gate;6-39:;"
                                            "40-64:residual norm;"));
  const ProgramResult words = facet({"explain"}, text);
  EXPECT_THAT(words.out, AllOf(HasSubstr("rows 2-3: absent_fusing 1.0.0, rule linear, fuses residual norm,"),
                               HasSubstr("rows 6-39: absent_fusing 1.0.0, rule linear, layout")));
}

// What fuses at few rows is no use where nobody takes the others alone.
TEST_F(PlanAbsentTest, RowsStayTogetherWhereTheRestIsRefused) {
  ConfigText text = absent_config();
  text.linear = "[linear]\n" + fixture("linear_absent_from_one");
  const ProgramResult run = facet({"explain", "--json"}, text);
  ASSERT_EQ(run.exit_code, 0) << run.text();
  const Json explained = run.json();
  for (const Json& module : explained["linear"]) EXPECT_EQ(rows_and_fusions(module), "1-64:;");
}

TEST_F(PlanAbsentTest, LimitsHold) {
  const Json whole = facet({"plan", "--json"}, absent_config()).json();
  const auto total = whole["total"].get<std::int64_t>();
  const ProgramResult within = facet({"plan", "--json", "--memory-limit", std::to_string(total)}, absent_config());
  EXPECT_EQ(within.exit_code, 0) << within.text();
  EXPECT_EQ(within.json()["within_limit"], true);
  const ProgramResult above = facet({"plan", "--json", "--memory-limit", std::to_string(total - 1)}, absent_config());
  EXPECT_EQ(above.exit_code, 1) << above.text();
  EXPECT_EQ(above.json()["within_limit"], false);
  EXPECT_EQ(above.json()["would_fit"]["max_sequences"], 1);
  // A lower bound above the limit is above it; below it nothing is known.
  ConfigText text = absent_config();
  text.attention = "[attention]\n" + fixture("attention_absent_unplanned");
  const ProgramResult unknown = facet({"plan", "--json", "--memory-limit", std::to_string(total)}, text);
  EXPECT_EQ(unknown.exit_code, 0) << unknown.text();
  EXPECT_TRUE(unknown.json()["within_limit"].is_null());
  EXPECT_THAT(facet({"plan", "--memory-limit", std::to_string(total)}, text).out, HasSubstr("is not known: the plan"));
  EXPECT_EQ(facet({"plan", "--memory-limit", "1MiB"}, text).exit_code, 1);
}

TEST_F(PlanAbsentTest, NothingElseRunsWithoutTheDevice) {
  for (const char* command : {"run", "bench"}) {
    std::vector<std::string> words = {command};
    if (words[0] == "run") words.insert(words.end(), {"--prompt-ids", write("ids.jsonl", "[1, 2]\n")});
    const ProgramResult run = facet(words, absent_config());
    EXPECT_EQ(run.exit_code, 2) << run.text();
    EXPECT_THAT(run.err, AllOf(HasSubstr("'cuda' is not available"), HasSubstr("config.toml:4: engine.device"),
                               HasSubstr("for the CPU, such as configs/default.toml")));
  }
}

}  // namespace
}  // namespace facet::cli_test
