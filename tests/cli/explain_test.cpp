// facet explain: rules, row intervals, losers with reasons, and ranges of layers.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include "config_text.h"
#include "run_program.h"

namespace facet::cli_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class ExplainTest : public FolderTest {
 protected:
  ProgramResult explain(const ConfigText& text, std::vector<std::string> more = {"--json"}) const {
    std::vector<std::string> arguments = {"explain", write("config.toml", text.toml())};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run_facet(arguments);
  }
};

// INT4 kernels refuse bf16 weights, so the rule's first plugin loses where its fallback wins.
constexpr const char* kMixedRules =
    "[linear]\n"
    "plugin = \"dense\"\n"
    "[[linear.rules]]\n"
    "layers = \"layers.1.mlp.*\"\n"
    "min_rows = 9\n"
    "plugin = \"w4a16\"\n"
    "fallback = [\"w4a8\", \"reference\"]\n";

TEST_F(ExplainTest, ShowsRowsRulesAndEveryLoser) {
  ConfigText text;
  text.linear = kMixedRules;
  const ProgramResult run = explain(text);
  ASSERT_EQ(run.exit_code, 0) << run.text();
  const Json document = run.json();
  std::size_t mixed = 0;
  for (const Json& module : document["linear"]) {
    const std::string name = module["module"];
    const Json& choices = module["choices"];
    ASSERT_FALSE(choices.empty()) << name;
    EXPECT_EQ(choices.front()["min_rows"], 1);
    EXPECT_EQ(choices.front()["plugin"], "dense") << name;
    EXPECT_EQ(choices.front()["rule"], "linear") << name;
    EXPECT_EQ(choices.front()["refused"].size(), 0u) << name;
    if (name.rfind("layers.1.mlp.", 0) != 0) {
      EXPECT_EQ(choices.size(), 1u) << name;
      continue;
    }
    ++mixed;
    ASSERT_EQ(choices.size(), 2u) << name;
    EXPECT_EQ(choices[0]["max_rows"], 8);
    EXPECT_EQ(choices[1]["min_rows"], 9);
    EXPECT_EQ(choices[1]["max_rows"], 64) << "max_step_tokens";
    EXPECT_EQ(choices[1]["plugin"], "reference");
    EXPECT_THAT(choices[1]["rule"].get<std::string>(), HasSubstr("linear.rules"));
    ASSERT_EQ(choices[1]["refused"].size(), 2u);
    EXPECT_EQ(choices[1]["refused"][0]["plugin"], "w4a16");
    EXPECT_EQ(choices[1]["refused"][1]["plugin"], "w4a8");
    for (const Json& refusal : choices[1]["refused"])
      EXPECT_THAT(refusal["reasons"].get<std::string>(), HasSubstr("bf16"));
  }
  EXPECT_EQ(mixed, 2u) << "gate and up are one call, down another";
  // Three layers of four calls, and the head.
  EXPECT_EQ(document["linear"].size(), 13u);
  EXPECT_EQ(document["linear"].back()["layer"], -1);
}

TEST_F(ExplainTest, NamesGroupsLayoutsAndScheduler) {
  ConfigText text;
  text.kv_cache = "[kv_cache.sliding]\nplugin = \"ring\"\n[kv_cache.global]\nplugin = \"paged\"";
  const ProgramResult run = explain(text);
  ASSERT_EQ(run.exit_code, 0) << run.text();
  const Json document = run.json();
  ASSERT_EQ(document["attention"].size(), 2u);
  ASSERT_EQ(document["kv_cache"].size(), 2u);
  EXPECT_EQ(document["attention"][0]["layers"], Json({0, 1}));
  EXPECT_EQ(document["attention"][1]["layers"], Json({2}));
  EXPECT_THAT(document["attention"][0]["layout"].get<std::string>(), HasSubstr("ring"));
  EXPECT_THAT(document["attention"][1]["layout"].get<std::string>(), HasSubstr("paged"));
  EXPECT_EQ(document["kv_cache"][0]["plugin"], "ring");
  EXPECT_EQ(document["kv_cache"][0]["rule"], "kv_cache.sliding");
  EXPECT_EQ(document["kv_cache"][1]["plugin"], "paged");
  EXPECT_EQ(document["scheduler"]["plugin"], "static");
}

TEST_F(ExplainTest, TextGroupsIdenticalLayersIntoRanges) {
  ConfigText text;
  text.linear = kMixedRules;
  const ProgramResult run = explain(text, {});
  ASSERT_EQ(run.exit_code, 0) << run.text();
  EXPECT_THAT(
      run.out,
      AllOf(HasSubstr("layers 0-1 self_attn.{q_proj,k_proj,v_proj}"), HasSubstr("layers 0,2 mlp.{gate_proj,up_proj}"),
            HasSubstr("layers 1 mlp.{gate_proj,up_proj}"), HasSubstr("refused w4a16:"), HasSubstr("lm_head"),
            // Counted from 0 and hard to find without the line of its plugin.
            testing::ContainsRegex("rule linear\\.rules\\[0\\] of line [0-9]+,")));
}

TEST_F(ExplainTest, AsksEverybodyWithAll) {
  const ProgramResult run = explain({}, {"--json", "--all"});
  ASSERT_EQ(run.exit_code, 0) << run.text();
  const Json document = run.json();
  const Json& others = document["linear"][0]["choices"][0]["others"];
  bool reference = false, w4a16 = false;
  for (const Json& other : others) {
    EXPECT_NE(other["plugin"], "dense") << "the winner is no other";
    if (other["plugin"] == "reference") reference = other["takes_it"];
    if (other["plugin"] == "w4a16") w4a16 = !other["takes_it"] && other["reasons"] != "";
  }
  EXPECT_TRUE(reference) << others.dump();
  EXPECT_TRUE(w4a16) << others.dump();
  EXPECT_FALSE(document["attention"][0]["others"].empty());
}

TEST_F(ExplainTest, WithoutATakerItEndsWithAllReasons) {
  ConfigText text;
  text.linear = "[linear]\nplugin = \"w4a16\"\nfallback = [\"w4a8\"]";
  const ProgramResult run = explain(text);
  EXPECT_EQ(run.exit_code, 3) << run.text();
  EXPECT_EQ(run.json()["error"]["kind"], "plugin");
  EXPECT_THAT(run.err, AllOf(HasSubstr("w4a16:"), HasSubstr("w4a8:"), HasSubstr("bf16"), HasSubstr("layers.0"),
                             HasSubstr("linear")));
}

TEST_F(ExplainTest, AWrongKeyIsAConfigError) {
  ConfigText text;
  text.attention += "\nplugn = \"flash\"";
  const ProgramResult run = explain(text);
  EXPECT_EQ(run.exit_code, 2) << run.text();
  EXPECT_THAT(run.err, AllOf(HasSubstr("plugn"), HasSubstr("config.toml:")));
}

// What is printed can be used as the configuration: it resolves to itself.
TEST_F(ExplainTest, TheResolvedConfigurationIsOne) {
  ConfigText text;
  text.linear = kMixedRules;
  const ProgramResult first = explain(text, {"--resolved"});
  ASSERT_EQ(first.exit_code, 0) << first.text();
  // Values of the file, of the engine and of the plugins.
  EXPECT_THAT(first.out, AllOf(HasSubstr("prefill_chunk"), HasSubstr("fallback"), HasSubstr("w4a16"),
                               HasSubstr("options = {key_block = 64, query_chunk = 64}"),
                               HasSubstr("options = {activations = \"fp32\"}"), HasSubstr("storage = \"bf16\"")));
  const ProgramResult second = run_facet({"explain", write("resolved.toml", first.out), "--resolved"});
  ASSERT_EQ(second.exit_code, 0) << second.text();
  EXPECT_EQ(second.out, first.out);
  const ProgramResult json = explain(text, {"--resolved", "--json"});
  EXPECT_EQ(json.json()["config"], first.out) << json.text();
  // A run records the same text.
  const ProgramResult run =
      run_facet({"run", (folder_ / "config.toml").string(), "--prompt", "a", "--max-tokens", "1", "--json"});
  EXPECT_EQ(run.json()["record"]["config"], first.out) << run.text();
}

// A rule for more rows than a step ever has is held against its plugin as any other, and printed with its options.
TEST_F(ExplainTest, ARuleThatNeverServesIsResolvedToo) {
  ConfigText text;
  const auto unused = [&text](const char* plugin) {
    text.linear = fmt::format("[linear]\nplugin = \"dense\"\n[[linear.rules]]\nmin_rows = 65\nplugin = \"{}\"", plugin);
  };
  unused("dequant_gemm");
  const ProgramResult resolved = explain(text, {"--resolved"});
  ASSERT_EQ(resolved.exit_code, 0) << resolved.text();
  EXPECT_THAT(resolved.out, HasSubstr("plugin = \"dequant_gemm\"\noptions = {tile = \"bf16\"}"));
  const ProgramResult run =
      run_facet({"run", (folder_ / "config.toml").string(), "--prompt", "a", "--max-tokens", "1", "--json"});
  ASSERT_EQ(run.exit_code, 0) << run.text();
  EXPECT_EQ(run.json()["record"]["config"], resolved.out);
  unused("elsewhere");
  const ProgramResult refused = explain(text, {"--resolved"});
  EXPECT_EQ(refused.exit_code, 3) << refused.text();
  EXPECT_THAT(refused.err, HasSubstr("config.toml:12: linear.rules[0].plugin: no linear plugin is named 'elsewhere'"));
}

}  // namespace
}  // namespace facet::cli_test
