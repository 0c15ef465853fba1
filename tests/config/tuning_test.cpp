// linear.tuning: whose rules come first, and what is wrong with a tuning file.
#include <gmock/gmock.h>

#include "config_test_support.h"

namespace facet {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing_support::kMinimal;
using testing_support::TemporaryFolder;

constexpr std::string_view kTuned =
    "[tuning]\ndevice = \"cpu, 2 threads\"\nmodel = \"m\"\nrepeat = 5\nrules = 2\n"
    "[[linear.rules]]\nlayers = \"*.mlp.*\"\nmax_rows = 4\nplugin = \"few\"\noptions = { most = 4 }\n"
    "[[linear.rules]]\nlayers = \"*.mlp.*\"\nmin_rows = 5\nplugin = \"many\"\n"
    "fallback = [\"other\"]\n";

std::string with_tuning(const std::string& name) {
  std::string text(kMinimal);
  const std::string linear = "plugin = \"reference\"\n";
  text.replace(text.find(linear), linear.size(),
               linear + "tuning = \"" + name + "\"\n[[linear.rules]]\nlayers = \"lm_head\"\nplugin = \"dense\"\n");
  return text;
}

std::string mistake_of(const TemporaryFolder& folder, std::string_view tuned) {
  folder.write("t.toml", tuned);
  const auto file = folder.write("c.toml", with_tuning("t.toml"));
  try {
    load_config(file);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::config);
    return error.full_text();
  }
  ADD_FAILURE() << "accepted:\n" << tuned;
  return "";
}

TEST(Tuning, ItsRulesComeFirst) {
  const TemporaryFolder folder;
  folder.write("tuned/t.toml", kTuned);
  const Config config = load_config(folder.write("c.toml", with_tuning("tuned/t.toml")));
  EXPECT_EQ(config.tuning.file, folder.path() / "tuned" / "t.toml");
  EXPECT_EQ(config.tuning.device, "cpu, 2 threads");
  EXPECT_EQ(config.tuning.line, 5);
  ASSERT_EQ(config.linear.size(), 4u);
  EXPECT_EQ(config.linear[0].choice.plugin, "few");
  EXPECT_EQ(config.linear[0].max_rows, 4);
  EXPECT_EQ(config.linear[0].choice.options.at(0).name, "most");
  EXPECT_EQ(config.linear[1].choice.plugin, "many");
  EXPECT_EQ(config.linear[2].choice.plugin, "dense");
  EXPECT_EQ(config.linear[3].choice.plugin, "reference");
  // Found by the line that names the file and by the place in it.
  EXPECT_EQ(config.linear[1].choice.line, 5);
  EXPECT_EQ(config.linear[1].choice.key_path, "linear.tuning t.toml:14 linear.rules[1]");
  EXPECT_EQ(config.linear[0].choice.options.at(0).line, 5);
  EXPECT_EQ(config.linear[0].choice.options.at(0).key_path, "linear.tuning t.toml:10 linear.rules[0].options.most");
  EXPECT_EQ(config.linear[1].choice.fallback_path, "linear.tuning t.toml:15 linear.rules[1].fallback");
  EXPECT_EQ(config.tuning.rules, 2u);
  // Written out the rules are those of the file itself.
  const Config whole = load_config(folder.write("whole.toml", to_toml(config)));
  EXPECT_EQ(whole, config);
  EXPECT_TRUE(whole.tuning.file.empty());
}

TEST(Tuning, TextNamesTheFileAndDoesNotReadIt) {
  const Config config = parse_config(with_tuning("/nowhere/t.toml"), "c.toml", "/conf");
  EXPECT_EQ(config.tuning.file, "/nowhere/t.toml");
  EXPECT_EQ(config.linear.size(), 2u);
}

TEST(Tuning, AFileThatWasCutIsRefused) {
  const TemporaryFolder folder;
  const std::string whole(kTuned);
  const std::string rule = whole.substr(whole.rfind("[[linear.rules]]"));
  EXPECT_THAT(mistake_of(folder, whole.substr(0, whole.size() - rule.size())),
              AllOf(HasSubstr("t.toml:5: tuning.rules: is 2, the file has 1"), HasSubstr("bench --tune")));
  EXPECT_THAT(mistake_of(folder, whole + rule), HasSubstr("is 2, the file has 3"));
  std::string without = whole;
  without.erase(without.find("rules = 2\n"), 10);
  EXPECT_THAT(mistake_of(folder, without), AllOf(HasSubstr("tuning.rules: missing"), HasSubstr("bench --tune")));
}

TEST(Tuning, MistakesNameBothFiles) {
  const TemporaryFolder folder;
  const auto names_both = AllOf(HasSubstr("t.toml"), HasSubstr("c.toml:5: linear.tuning"));
  EXPECT_THAT(mistake_of(folder, "[tuning]\n"),
              AllOf(names_both, HasSubstr("tuning.device: missing"), HasSubstr("linear.rules: missing")));
  EXPECT_THAT(mistake_of(folder, std::string(kTuned) + "typo = 1\n"), AllOf(names_both, HasSubstr("typo")));
  EXPECT_THAT(mistake_of(folder, std::string(kTuned) + "[engine]\ndevice = \"cuda\"\n"),
              AllOf(names_both, HasSubstr("unknown key 'engine'; known here: tuning, linear")));
  EXPECT_THAT(mistake_of(folder, std::string(kTuned) + "[linear]\nplugin = \"x\"\n"), names_both);
  EXPECT_THAT(mistake_of(folder, "]"), AllOf(names_both, HasSubstr("not valid TOML")));
  const auto file = folder.write("missing.toml", with_tuning("no.toml"));
  try {
    load_config(file);
    ADD_FAILURE() << "accepted";
  } catch (const Error& error) {
    EXPECT_THAT(error.full_text(),
                AllOf(HasSubstr("no.toml: cannot read the tuning file"), HasSubstr("missing.toml:5")));
  }
}

}  // namespace
}  // namespace facet
