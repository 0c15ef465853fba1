// What a configuration says about plugins, held against those that are there: every wrong name, folder and rule is
// found by file, line and key, also where nothing would ever use it.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include "config_text.h"
#include "run_program.h"

namespace facet::cli_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class PluginChoiceTest : public FolderTest {
 protected:
  // stderr of `facet plan` and `facet explain`, which must both refuse with that code.
  std::string refusal(const ConfigText& text, int exit_code) const {
    const std::string file = write("config.toml", text.toml());
    const ProgramResult plan = run_facet({"plan", file}), explain = run_facet({"explain", file});
    EXPECT_EQ(plan.exit_code, exit_code) << plan.text();
    EXPECT_EQ(explain.exit_code, exit_code) << explain.text();
    EXPECT_EQ(plan.err, explain.err);
    return plan.err;
  }
  std::string at(int line, const std::string& key) const {
    return fmt::format("{}:{}: {}: ", (fs::canonical(folder_) / "config.toml").string(), line, key);
  }
};

std::string fixture(const std::string& name) {
  return fmt::format("plugin = \"{}/{}.so\"", FACET_FIXTURE_DIR, name);
}

TEST_F(PluginChoiceTest, UnknownNamesAreAllReportedWithTheirPlaces) {
  ConfigText text;
  text.linear =
      "[linear]\n"
      "plugin = \"dense\"\n"
      "[[linear.rules]]\n"
      "layers = \"lm_head\"\n"
      "plugin = \"w4a61\"\n"  // line 12
      "[[linear.rules]]\n"
      "min_rows = 9\n"
      "plugin = \"reference\"\n"
      "fallback = [\"dense\", \"referense\"]";  // line 16
  text.scheduler = "[scheduler]\nplugin = \"statik\"";
  const std::string both = refusal(text, 3);
  EXPECT_THAT(both,
              AllOf(HasSubstr("3 mistakes in the choice of plugins"),
                    HasSubstr(at(12, "linear.rules[0].plugin") + "no linear plugin is named 'w4a61'; did you mean"),
                    HasSubstr(at(16, "linear.rules[1].fallback[1]") +
                              "no linear plugin is named 'referense'; did you mean 'reference'?"),
                    HasSubstr(at(22, "scheduler.plugin") + "no scheduler plugin is named 'statik'")));
  // Which of two files it is.
  const std::string good = write("good.toml", ConfigText{}.toml());
  const ProgramResult ab = run_facet({"ab", good, (folder_ / "config.toml").string(), "--requests",
                                      write("requests.jsonl", "{\"prompt_ids\": [1], \"max_tokens\": 1}\n")});
  EXPECT_EQ(ab.exit_code, 3) << ab.text();
  EXPECT_THAT(ab.err, HasSubstr(at(12, "linear.rules[0].plugin")));
}

TEST_F(PluginChoiceTest, FallbacksOfEveryKindMustExist) {
  ConfigText text;
  text.attention = "[attention]\nplugin = \"flash\"\nfallback = [\"flahs\"]";
  EXPECT_THAT(refusal(text, 3), AllOf(HasSubstr(at(12, "attention.fallback[0]")), HasSubstr("did you mean 'flash'?"),
                                      Not(HasSubstr("mistakes"))));
  // Beside the plugin of the default, in the group's table.
  text.attention = "[attention]\nplugin = \"flash\"\n[attention.global]\nfallback = [\"flahs\"]";
  EXPECT_THAT(refusal(text, 3), HasSubstr(at(13, "attention.global.fallback[0]")));
  text = {};
  text.kv_cache = "[kv_cache]\nplugin = \"static\"\nfallback = [\"pagd\"]";
  EXPECT_THAT(refusal(text, 3), AllOf(HasSubstr(at(14, "kv_cache.fallback[0]")), HasSubstr("'paged'")));
  text.kv_cache = "[kv_cache]\nplugin = \"static\"\nfallback = [\"./nosuch.so\"]";
  EXPECT_THAT(refusal(text, 3), AllOf(HasSubstr(at(14, "kv_cache.fallback[0]")), HasSubstr("nosuch.so")));
}

TEST_F(PluginChoiceTest, FoldersOfPluginsMustExist) {
  ConfigText text;
  const std::string file = write("a-file", "");
  text.scheduler += fmt::format("\n[plugins]\npath = [\".\", \"nowhere\", \"{}\"]", file);
  EXPECT_THAT(
      refusal(text, 2),
      AllOf(HasSubstr(at(17, "plugins.path[1]") + "'" + (fs::canonical(folder_) / "nowhere").string()),
            HasSubstr(at(17, "plugins.path[2]") + "'" + file + "' is no folder"), Not(HasSubstr("plugins.path[0]"))));
}

TEST_F(PluginChoiceTest, WhatAPluginRefusesHasAPlace) {
  ConfigText text;
  text.scheduler = "[scheduler]\n" + fixture("unavailable");
  EXPECT_THAT(refusal(text, 3), AllOf(HasSubstr(at(15, "scheduler.plugin")), HasSubstr("no device of this sort")));
  text.scheduler = "[scheduler]\n" + fixture("failing_create");
  EXPECT_THAT(refusal(text, 3), AllOf(HasSubstr(at(15, "scheduler.plugin")), HasSubstr("depth 3 needs breadth 4")));
  text.scheduler = "[scheduler]\n" + fixture("linear_minimal");
  EXPECT_THAT(refusal(text, 3), AllOf(HasSubstr(at(15, "scheduler.plugin")), HasSubstr("kind is linear")));
}

TEST_F(PluginChoiceTest, AnUnknownSyntheticModelHasAPlace) {
  const std::string file =
      write("config.toml",
            "[model]\nsynthetic = \"str\"\n[linear]\nplugin = \"dense\"\n[attention]\nplugin = \"flash\"\n"
            "[kv_cache]\nplugin = \"static\"\n[scheduler]\nplugin = \"static\"\n");
  const ProgramResult plan = run_facet({"plan", file});
  EXPECT_EQ(plan.exit_code, 2) << plan.text();
  EXPECT_THAT(plan.err, AllOf(HasSubstr("'str' is unknown; known is gemma4-12b"),
                              HasSubstr("config.toml:2: model.synthetic = \"str\"")));
}

// The kernel is asked for the problem without fusions last, and that is what its reasons are about.
TEST_F(PluginChoiceTest, ARefusalShowsTheProblemThatWasAskedLast) {
  ConfigText text;
  text.linear = "[linear]\nplugin = \"w4a8\"";
  EXPECT_THAT(refusal(text, 3), AllOf(HasSubstr("no linear plugin takes layers.0.self_attn.q_proj (rows 1..64,"),
                                      HasSubstr("weights are bf16"), Not(HasSubstr("residual norm"))));
}

TEST_F(PluginChoiceTest, RulesThatOthersLeaveNothingToAreRefused) {
  ConfigText text;
  text.linear =
      "[linear]\n"
      "plugin = \"dense\"\n"
      "[[linear.rules]]\n"
      "max_rows = 16\n"
      "plugin = \"reference\"\n"
      "[[linear.rules]]\n"
      "max_rows = 8\n"
      "plugin = \"dense\"\n"  // line 15
      "[[linear.rules]]\n"
      "layers = \"lm_head\"\n"
      "min_rows = 10\n"
      "plugin = \"reference\"\n"
      "[[linear.rules]]\n"
      "layers = \"lm_head\"\n"
      "plugin = \"dense\"";  // line 22
  EXPECT_THAT(refusal(text, 2), AllOf(HasSubstr("can never serve anything"),
                                      HasSubstr("config.toml:15: linear.rules[1]: what it matches is served by rules "
                                                "before it (linear.rules[0]); put it before them, or leave it out"),
                                      HasSubstr("config.toml:22: linear.rules[3]: what it matches is served by rules "
                                                "before it (linear.rules[0], linear.rules[2])"),
                                      Not(HasSubstr("linear.rules[2]: "))));
  // A default that rules leave nothing to is no mistake, as there must be one; a name that no plugin has is.
  const std::string rule = "\n[[linear.rules]]\nplugin = \"dense\"";
  text.linear = "[linear]\nplugin = \"reference\"" + rule;
  const ProgramResult covered = run_facet({"plan", write("config.toml", text.toml())});
  EXPECT_EQ(covered.exit_code, 0) << covered.text();
  text.linear = "[linear]\nplugin = \"bogus\"" + rule;
  EXPECT_THAT(refusal(text, 3), HasSubstr(at(9, "linear.plugin") + "no linear plugin is named 'bogus'"));
}

// Rows that no step has are no mistake of the rule: another engine.max_step_tokens gives it work.
TEST_F(PluginChoiceTest, RulesBeyondAStepAreWarnedOf) {
  ConfigText text;
  text.linear =
      "[linear]\nplugin = \"dense\"\n[[linear.rules]]\nmax_rows = 64\nplugin = \"reference\"\n"
      "[[linear.rules]]\nmax_rows = 1024\nplugin = \"dense\"";
  const ProgramResult plan = run_facet({"plan", write("config.toml", text.toml())});
  EXPECT_EQ(plan.exit_code, 0) << plan.text();
  EXPECT_THAT(plan.err, HasSubstr("config.toml:15: linear.rules[1]: its rows, from 1, never meet in a step of "
                                  "engine.max_step_tokens 64"));
}

// In a build without CUDA a CUDA plugin is not a name to correct.
TEST_F(PluginChoiceTest, ABuildWithoutCudaSaysSo) {
#ifdef FACET_HAS_CUDA
  GTEST_SKIP() << "built with CUDA";
#else
  const ProgramResult plan =
      run_facet({"plan", (embedded_checkpoint() / "../../../../configs/cuda/docs-22m.toml").string()});
  EXPECT_EQ(plan.exit_code, 3) << plan.text();
  EXPECT_THAT(plan.err, AllOf(HasSubstr("attention.plugin: this build has no CUDA plugins, and attention plugin "
                                        "'flash_cuda' is one"),
                              HasSubstr("linear.plugin: this build has no CUDA plugins"),
                              HasSubstr("configs/default.toml"), Not(HasSubstr("correct the name"))));
#endif
}

}  // namespace
}  // namespace facet::cli_test
