// facet bench --tune and linear.tuning. Which of two real kernels is faster is not asserted; a plugin that does nothing
// is faster than any.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <fstream>
#include <sstream>

#include "config_text.h"
#include "run_program.h"

namespace facet::cli_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class TuneTest : public FolderTest {
 protected:
  std::string config(const std::string& linear) const {
    ConfigText text;
    text.linear = linear;
    return write("config.toml", text.toml());
  }
  std::string rules_file() const { return (folder_ / "tuned.toml").string(); }
  Json tune(const std::string& file) const {
    const ProgramResult run = run_facet({"bench", file, "--tune", rules_file(), "--repeat", "3", "--json"});
    EXPECT_EQ(run.exit_code, 0) << run.text();
    return run.json();
  }
  std::string rules_text() const {
    std::ostringstream text;
    text << std::ifstream(rules_file()).rdbuf();
    return text.str();
  }
};

// The plugin that explain names for so many rows.
std::string plugin_for(const Json& module, std::int64_t rows) {
  for (const Json& choice : module["choices"]) {
    if (rows >= choice["min_rows"] && rows <= choice["max_rows"]) return choice["plugin"];
  }
  return "";
}

TEST_F(TuneTest, RulesSayWhatWasMeasured) {
  const Json measured = tune(config("[linear]\nplugin = \"dense\"\n[[linear.rules]]\nplugin = \"reference\""));
  ASSERT_EQ(measured["modules"].size(), 5u);
  EXPECT_THAT(undocumented_keys(measured), testing::IsEmpty());
  for (const Json& module : measured["modules"]) {
    // A threshold moves only for a plugin that is faster than all that the one before it took.
    Json before;
    std::int64_t rows = 1;
    for (const Json& entry : module["rows"]) {
      EXPECT_EQ(entry["rows"], rows) << module["layers"];
      rows *= 2;
      ASSERT_EQ(entry["plugins"].size(), 2u);
      const Json &first = entry["plugins"][0], &second = entry["plugins"][1];
      const Json& faster = first["us"]["median"] <= second["us"]["median"] ? first : second;
      const Json& best = entry["best"] == first["index"] ? first : second;
      EXPECT_EQ(best["index"], entry["best"]);
      EXPECT_TRUE(best == faster || (best["index"] == before && best["us"]["min"] <= faster["us"]["median"]))
          << entry.dump();
      before = entry["best"];
    }
    EXPECT_EQ(rows, 128) << "64 rows of a step, and of logits";
  }

  const std::string tuned = config("[linear]\nplugin = \"dense\"\ntuning = \"tuned.toml\"");
  const ProgramResult explained = run_facet({"explain", tuned, "--json"});
  ASSERT_EQ(explained.exit_code, 0) << explained.text();
  const Json plan = explained.json();
  std::size_t seen = 0;
  for (const Json& module : plan["linear"]) {
    const auto name = module["module"].get<std::string>();
    for (const Json& kind : measured["modules"]) {
      // Patterns in their order: "layers.*.mlp.down_proj" stands before "layers.*.mlp.*".
      const auto layers = kind["layers"].get<std::string>();
      const std::string end = layers.substr(layers.rfind('*') == std::string::npos ? 0 : layers.rfind('*') + 1);
      const std::string part = layers.find(".mlp.") != std::string::npos         ? ".mlp."
                               : layers.find(".self_attn.") != std::string::npos ? ".self_attn."
                                                                                 : "lm_head";
      if (name.find(part) == std::string::npos || !name.ends_with(end)) continue;
      for (const Json& entry : kind["rows"]) {
        for (const Json& plugin : entry["plugins"]) {
          if (plugin["index"] == entry["best"]) {
            EXPECT_EQ(plugin_for(module, entry["rows"]), plugin["plugin"]) << name << " " << entry["rows"];
          }
        }
      }
      ++seen;
      break;
    }
    EXPECT_THAT(module["choices"][0]["rule"].get<std::string>(),
                AllOf(HasSubstr("linear.tuning tuned.toml:"), HasSubstr("linear.rules[")));
  }
  EXPECT_EQ(seen, plan["linear"].size());
}

TEST_F(TuneTest, APluginOfFewRowsServesThose) {
  const std::string few = fmt::format("plugin = \"{}/few_rows.so\"\noptions = {{ most = 4 }}", FACET_FIXTURE_DIR);
  const std::string linear = fmt::format("[linear]\nplugin = \"dense\"\n[[linear.rules]]\nmax_rows = 2\n{}", few);
  const Json measured = tune(config(linear));
  for (const Json& module : measured["modules"]) {
    for (const Json& entry : module["rows"]) EXPECT_EQ(entry["plugins"].size(), entry["rows"] <= 4 ? 2u : 1u);
  }
  EXPECT_THAT(rules_text(), AllOf(HasSubstr("min_rows = 1\nmax_rows = 4\n"), HasSubstr("options = {most = 4}"),
                                  HasSubstr("min_rows = 5\nmax_rows = 0\nplugin = \"dense\"")));
  const Json tuned =
      run_facet({"explain", config("[linear]\nplugin = \"reference\"\ntuning = \"tuned.toml\""), "--json"}).json();
  for (const Json& module : tuned["linear"]) {
    EXPECT_EQ(plugin_for(module, 4), "few_rows");
    EXPECT_EQ(plugin_for(module, 5), "dense");
    EXPECT_EQ(module["choices"].size(), 2u);
  }
  // Rules of the file serve again when the key is taken out, so they may stay where the tuned ones take everything.
  const std::string idle = "\n[[linear.rules]]\nlayers = \"lm_head\"\nplugin = \"reference\"";
  const ProgramResult kept =
      run_facet({"plan", config("[linear]\nplugin = \"dense\"\ntuning = \"tuned.toml\"" + idle)});
  EXPECT_EQ(kept.exit_code, 0) << kept.text();
  const std::string written = run_facet({"explain", (folder_ / "config.toml").string(), "--resolved"}).out;
  EXPECT_THAT(written, Not(HasSubstr("reference")));
  EXPECT_EQ(run_facet({"explain", write("written.toml", written), "--resolved"}).out, written);
  // Written out, the rules need no tuning file.
  const std::string resolved =
      run_facet({"explain", config("[linear]\nplugin = \"dense\"\ntuning = \"tuned.toml\""), "--resolved"}).out;
  EXPECT_THAT(resolved, AllOf(HasSubstr("few_rows.so"), Not(HasSubstr("tuning"))));
}

// A file that says what the configuration says is no measurement.
TEST_F(TuneTest, OnePluginAloneIsRefused) {
  const std::string one = config(
      "[linear]\nplugin = \"dense\"\nfallback = [\"reference\"]\n[[linear.rules]]\nmax_rows = 8\nplugin = "
      "\"dense\"\nfallback = [\"reference\"]");
  const ProgramResult run = run_facet({"bench", one, "--tune", rules_file()});
  EXPECT_EQ(run.exit_code, 2) << run.text();
  EXPECT_THAT(run.err, AllOf(HasSubstr("config.toml"), HasSubstr("one plugin only, 'dense'"),
                             HasSubstr("nothing to compare"), HasSubstr("[[linear.rules]]")));
  EXPECT_FALSE(std::filesystem::exists(rules_file()));
  // Two are named, and the INT4 kernel takes none of these bf16 weights.
  const std::string alone = config(
      "[linear]\nplugin = \"dense\"\n[[linear.rules]]\nlayers = \"lm_head\"\nplugin = \"w4a8\"\nfallback = "
      "[\"dense\"]");
  const ProgramResult warned = run_facet({"bench", alone, "--tune", rules_file(), "--repeat", "1"});
  EXPECT_EQ(warned.exit_code, 0) << warned.text();
  EXPECT_THAT(warned.err, AllOf(HasSubstr("lm_head: only dense"), HasSubstr("nothing to compare")));
}

TEST_F(TuneTest, AnotherDeviceIsRefused) {
  tune(config("[linear]\nplugin = \"dense\"\n[[linear.rules]]\nplugin = \"reference\""));
  std::string text = rules_text();
  const std::string device = run_facet({"explain", config("[linear]\nplugin = \"dense\""), "--json"}).json()["device"];
  const std::size_t at = text.find(device);
  ASSERT_NE(at, std::string::npos) << text;
  const std::string file = config("[linear]\nplugin = \"dense\"\ntuning = \"tuned.toml\"");
  const std::string ids = write("ids.jsonl", "[1, 2]\n");
  const ProgramResult same = run_facet({"run", file, "--prompt-ids", ids, "--max-tokens", "2"});
  EXPECT_EQ(same.exit_code, 0) << same.text();
  write("tuned.toml", text.replace(at, device.size(), "NVIDIA H200, 139.8 GiB"));
  const ProgramResult other = run_facet({"run", file, "--prompt-ids", ids, "--max-tokens", "2"});
  EXPECT_EQ(other.exit_code, 2) << other.text();
  EXPECT_THAT(other.err, AllOf(HasSubstr("config.toml:10: linear.tuning"), HasSubstr("tuned.toml"),
                               HasSubstr("'NVIDIA H200, 139.8 GiB'"), HasSubstr("'" + device + "'")));
}

TEST_F(TuneTest, WhatNobodyServesIsNamed) {
  const ProgramResult run = run_facet({"bench",
                                       config("[linear]\nplugin = \"dense\"\n[[linear.rules]]\nmax_rows = 1\n"
                                              "plugin = \"w4a8\"\nfallback = [\"dense\"]"),
                                       "--tune", (folder_ / "missing" / "x.toml").string()});
  EXPECT_EQ(run.exit_code, 2) << run.text();
  EXPECT_THAT(run.err, HasSubstr("cannot be written"));
  // A configuration given by mistake is not written over.
  const std::string precious = config("[linear]\nplugin = \"dense\"");
  const ProgramResult over = run_facet({"bench", precious, "--tune", precious});
  EXPECT_EQ(over.exit_code, 2) << over.text();
  EXPECT_THAT(over.err, HasSubstr("is no tuning file"));
  EXPECT_EQ(run_facet({"plan", precious}).exit_code, 0);
  // As a fallback dense serves every row; alone neither plugin does.
  const std::string few = fmt::format("plugin = \"{}/few_rows.so\"\nfallback = [\"dense\"]", FACET_FIXTURE_DIR);
  const std::string both = fmt::format("[linear]\n{0}\n[[linear.rules]]\n{0}\noptions = {{ most = 4 }}", few);
  const ProgramResult none = run_facet({"bench", config(both), "--tune", rules_file()});
  EXPECT_EQ(none.exit_code, 1) << none.text();
  EXPECT_THAT(none.err, AllOf(HasSubstr("serves 8 rows of every"), HasSubstr("alone")));
  EXPECT_FALSE(std::filesystem::exists(rules_file()));
}

}  // namespace
}  // namespace facet::cli_test
