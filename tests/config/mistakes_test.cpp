// What a wrong file says: every mistake at once, with file, line, key path and cure.
#include <gmock/gmock.h>

#include <algorithm>

#include "config_test_support.h"

namespace facet {
namespace {

using testing::HasSubstr;
using testing::Not;
using testing_support::kMinimal;
using testing_support::mistakes;
using testing_support::TemporaryFolder;

std::string minimal_and(std::string_view rest) {
  return std::string(kMinimal) + std::string(rest);
}

std::string load_error(const std::filesystem::path& file) {
  try {
    load_config(file);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::config);
    return error.message();
  }
  ADD_FAILURE() << "accepted " << file;
  return "";
}

std::size_t line_count(const std::string& text) {
  return static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n'));
}

TEST(Mistakes, EightDifferentOnesAreReportedTogetherInOrder) {
  const std::string text = mistakes(R"([model]
path = "${HOME}/m"
[engine]
max_sequences = "8"
max_step_tokens = 0
device = "gpu"
[linear]
plugin = "w4a16"
[[linear.rules]]
layer = "*.mlp.*"
min_rows = 9
max_rows = 3
plugin = "dense"
[attention]
plugin = "flash"
options = { chunks = [1, 2] }
[kv_cache]
plugin = "static"
[scheduler]
max_sequences = 4
plugin = "static"
)");
  const char* expected[] = {
      "test.toml:2: model.path: '${HOME}/m': environment variables are not supported",
      "test.toml:4: engine.max_sequences: must be an integer, found the string '8'",
      "test.toml:5: engine.max_step_tokens: must be 1 to 16777216, found 0",
      "test.toml:6: engine.device: must be one of cpu, cuda, found 'gpu'",
      "test.toml:10: linear.rules[0].layer: unknown key 'layer'; did you mean 'layers'?",
      "test.toml:12: linear.rules[0].max_rows: 3 is less than min_rows, 9",
      "test.toml:16: attention.options.chunks: must be a boolean, integer, real number or string, found an array",
      "test.toml:20: scheduler.max_sequences: unknown key 'max_sequences'; it belongs in [engine]",
  };
  EXPECT_THAT(text, HasSubstr("test.toml: 8 mistakes"));
  EXPECT_EQ(line_count(text), 8u) << text;
  std::size_t at = 0;
  for (const char* line : expected) {
    const std::size_t found = text.find(line, at);
    ASSERT_NE(found, std::string::npos) << "missing or out of order: " << line << "\nin\n" << text;
    at = found;
  }
}

TEST(Mistakes, MisspeltKeyNamesTheNearest) {
  EXPECT_THAT(mistakes(minimal_and("[engine]\nmax_batch_tokns = 4\n")),
              HasSubstr("test.toml:14: engine.max_batch_tokns: unknown key 'max_batch_tokns'; did you mean "
                        "'max_step_tokens'?"));
  EXPECT_THAT(mistakes(minimal_and("[engine]\nprefil_chunk = 4\n")), HasSubstr("did you mean 'prefill_chunk'?"));
  EXPECT_THAT(mistakes(minimal_and("[attention.slidng]\nplugin = 'flash'\n")),
              HasSubstr("test.toml:13: attention.slidng: unknown key 'slidng'; did you mean 'sliding'?"));
}

TEST(Mistakes, MisspeltTableNamesTheNearest) {
  EXPECT_THAT(mistakes(minimal_and("[kv_cahce]\nplugin = 'ring'\n")),
              HasSubstr("test.toml:13: kv_cahce: unknown table 'kv_cahce'; did you mean 'kv_cache'?"));
  EXPECT_THAT(mistakes(minimal_and("[[linear.rule]]\nplugin = 'dense'\n")),
              HasSubstr("linear.rule: unknown key 'rule'; did you mean 'rules'?"));
}

TEST(Mistakes, RightKeyInTheWrongTableNamesTheRightOne) {
  EXPECT_THAT(mistakes("max_context = 5\n" + std::string(kMinimal)),
              HasSubstr("test.toml:1: max_context: unknown key 'max_context'; it belongs in [engine]"));
  EXPECT_THAT(mistakes(minimal_and("[engine]\nhead = 'int4'\n")), HasSubstr("it belongs in [model]"));
  EXPECT_THAT(mistakes(minimal_and("[engine]\nmin_rows = 4\n")), HasSubstr("it belongs in [[linear.rules]]"));
  EXPECT_THAT(mistakes(minimal_and("[engine.model]\npath = 'x'\n")), HasSubstr("belongs in the top level, as [model]"));
  // Misplaced and misspelt at once.
  EXPECT_THAT(mistakes(minimal_and("[plugins]\nmax_sequnces = 4\n")),
              HasSubstr("did you mean 'max_sequences', which belongs in [engine]?"));
}

TEST(Mistakes, WrongCaseAndHyphensNameTheSpelling) {
  EXPECT_THAT(mistakes(minimal_and("[engine]\nMax_Sequences = 4\n")), HasSubstr("write 'max_sequences'"));
  EXPECT_THAT(mistakes(minimal_and("[engine]\nmax-sequences = 4\n")), HasSubstr("write 'max_sequences'"));
  EXPECT_THAT(mistakes(minimal_and("[Engine]\nthreads = 1\n")), HasSubstr("unknown table 'Engine'"));
}

TEST(Mistakes, OptionBesideTheOptionsTableIsExplained) {
  const std::string text = std::string(kMinimal.substr(0, kMinimal.find("[scheduler]"))) +
                           "[scheduler]\nplugin = 'static'\nblock-size = 4\n";
  EXPECT_THAT(mistakes(text), HasSubstr("test.toml:11: scheduler.block-size: unknown key 'block-size'"));
  EXPECT_THAT(mistakes(text), HasSubstr("an option of the plugin goes into the table 'options'"));
}

TEST(Mistakes, DuplicatesAndSyntaxErrorsHaveLineAndColumn) {
  EXPECT_THAT(mistakes("[model]\npath = 'a'\npath = 'b'\n"), HasSubstr("test.toml:3:8: not valid TOML:"));
  EXPECT_THAT(mistakes("[model]\npath = 'a'\n[engine]\n[model]\n"), HasSubstr("test.toml:4:"));
  EXPECT_THAT(mistakes("[model\n"), HasSubstr("test.toml:1:7: not valid TOML:"));
  EXPECT_THAT(mistakes("[model]\npath = \n"), HasSubstr("test.toml:2:"));
  EXPECT_THAT(mistakes("[model]\npath = \"\xFF\"\n"), HasSubstr("test.toml:2:"));
}

// Files on which toml++ 3.3 asserts, or reaches what it calls unreachable.
TEST(Mistakes, InputsThatUpsetTheParserAreSyntaxErrors) {
  EXPECT_THAT(mistakes("[[["), HasSubstr("test.toml:1:3: not valid TOML:"));
  EXPECT_THAT(mistakes("[model]\n\xEF\xB8\x8F = 1\n"), HasSubstr("test.toml:2:1: not valid TOML:"));
  EXPECT_THAT(mistakes("[model]\npath\xEF\xB4\xBE = 1\n"), HasSubstr("test.toml:2:5: not valid TOML:"));
}

TEST(Mistakes, EverythingRequiredIsNamedForAnEmptyFile) {
  const std::string text = mistakes("");
  for (const char* key : {"model.path", "linear.plugin", "attention.plugin", "kv_cache.plugin", "scheduler.plugin"}) {
    EXPECT_THAT(text, HasSubstr(std::string(key) + ": missing")) << text;
  }
  EXPECT_EQ(line_count(text), 5u) << text;
}

TEST(Mistakes, OneGroupWithoutAPluginIsNamed) {
  std::string text(kMinimal);
  text.replace(text.find("[attention]"), 11, "[attention.global]");
  EXPECT_THAT(mistakes(text), HasSubstr("attention.sliding: plugin missing; name one in [attention.sliding]"));
}

TEST(Mistakes, ARuleNeedsAPlugin) {
  EXPECT_THAT(mistakes(minimal_and("[[linear.rules]]\nlayers = '*'\n")),
              HasSubstr("test.toml:13: linear.rules[0].plugin: missing"));
}

TEST(Mistakes, WrongTypesNameBoth) {
  EXPECT_THAT(mistakes(minimal_and("[engine]\nthreads = 2.0\n")),
              HasSubstr("engine.threads: must be an integer, found the real number 2"));
  EXPECT_THAT(mistakes(minimal_and("[engine]\ndevice = true\n")),
              HasSubstr("engine.device: must be a string, found the boolean true"));
  EXPECT_THAT(mistakes(minimal_and("[plugins]\npath = 'dir'\n")),
              HasSubstr("plugins.path: must be an array of strings, found the string 'dir'"));
  EXPECT_THAT(mistakes(minimal_and("[plugins]\npath = ['a', 1]\n")),
              HasSubstr("plugins.path[1]: must be a string, found the integer 1"));
  EXPECT_THAT(mistakes("engine = 3\n" + std::string(kMinimal)),
              HasSubstr("engine: must be a table, written [engine], found the integer 3"));
  EXPECT_THAT(mistakes(minimal_and("[linear.rules]\nplugin = 'dense'\n")),
              HasSubstr("linear.rules: must be an array of tables, each written [[linear.rules]], found a table"));
  EXPECT_THAT(mistakes(minimal_and("start = 2026-01-01\n")), HasSubstr("scheduler.options.start: must be a boolean"));
}

TEST(Mistakes, RangesNameBothValues) {
  for (const char* key : {"max_sequences", "max_context", "max_step_tokens", "prefill_chunk", "threads"}) {
    EXPECT_THAT(mistakes(minimal_and(fmt::format("[engine]\n{} = -1\n", key))),
                HasSubstr(fmt::format("test.toml:14: engine.{}: must be", key)));
  }
  EXPECT_THAT(mistakes(minimal_and("[engine]\nmax_step_tokens = 64\nprefill_chunk = 65\n")),
              HasSubstr("test.toml:15: engine.prefill_chunk: 65 is more than max_step_tokens, 64"));
  EXPECT_THAT(mistakes(minimal_and("[[linear.rules]]\nplugin = 'dense'\nmin_rows = 0\n")),
              HasSubstr("linear.rules[0].min_rows: must be at least 1, found 0"));
}

TEST(Mistakes, SettingsWithoutEffectAreRefused) {
  EXPECT_THAT(mistakes(minimal_and("[attention.sliding]\nplugin = 'a'\n[attention.global]\nplugin = 'b'\n"
                                   "[attention.options]\nx = 1\n")),
              HasSubstr("attention.options: has no effect"));
  EXPECT_THAT(mistakes(minimal_and("[attention.sliding]\nplugin = 'a'\n[attention.global]\nplugin = 'b'\n")),
              HasSubstr("test.toml:6: attention.plugin: has no effect"));
  std::string text(kMinimal);
  text.insert(text.find("[scheduler.options]"), "fallback = ['other']\n");
  EXPECT_THAT(mistakes(text), HasSubstr("test.toml:12: scheduler.fallback: unknown key 'fallback'; a scheduler takes "
                                        "every model"));
  EXPECT_THAT(mistakes(minimal_and("[attention.sliding]\nplugin = 'a'\nfallback = ['b', 'a']\n")),
              HasSubstr("attention.sliding.fallback: plugin 'a' is tried twice"));
}

TEST(Mistakes, StringsThatCannotBeMeantAreRefused) {
  EXPECT_THAT(mistakes(minimal_and("where = '${HOME}/x'\n")),
              HasSubstr("test.toml:13: scheduler.options.where: '${HOME}/x': environment variables are not supported"));
  EXPECT_THAT(mistakes(minimal_and("[plugins]\npath = [\"C:\\temp\"]\n")), HasSubstr("control character"));
  EXPECT_THAT(mistakes(minimal_and("[plugins]\npath = ['']\n")), HasSubstr("plugins.path[0]: must not be empty"));
  EXPECT_THAT(mistakes(minimal_and("x = nan\n")), HasSubstr("nan is not a value"));
}

TEST(Mistakes, FilesThatCannotBeReadAreNamed) {
  const TemporaryFolder folder;
  EXPECT_THAT(load_error(folder.path() / "none.toml"), HasSubstr((folder.path() / "none.toml").string()));
  EXPECT_THAT(load_error(folder.path() / "none.toml"), HasSubstr("No such file"));
  EXPECT_THAT(load_error(folder.path()), HasSubstr("is a folder"));
  EXPECT_THAT(load_error(""), HasSubstr("empty file name"));
  std::filesystem::create_symlink(folder.path() / "gone.toml", folder.path() / "dangling.toml");
  EXPECT_THAT(load_error(folder.path() / "dangling.toml"), HasSubstr("dangling.toml"));
  EXPECT_THAT(load_error("/dev/null"), HasSubstr("not a regular file"));
}

TEST(Mistakes, FilesAboveTheLimitAreRefusedAndAtTheLimitRead) {
  const TemporaryFolder folder;
  std::string text(kMinimal);
  text.resize((std::size_t{1} << 20) - 1, '#');
  text[kMinimal.size()] = '#';
  EXPECT_NO_THROW(load_config(folder.write("fits.toml", text + "\n")));
  EXPECT_THAT(load_error(folder.write("large.toml", text + "##")), HasSubstr("larger than 1 MiB"));
}

TEST(Mistakes, HugeInputsStayBounded) {
  std::string deep;
  for (int i = 0; i < 200000; ++i) deep += "a.";
  EXPECT_THAT(mistakes(deep + "a = 1\n"), HasSubstr("test.toml:1: the line has 200000 dots"));
  EXPECT_THAT(mistakes(std::string(200000, '[')), HasSubstr("not valid TOML"));
  std::string wide(kMinimal);
  for (int i = 0; i < 2000; ++i) wide += fmt::format("[unknown{}]\n", i);
  const std::string text = mistakes(wide);
  EXPECT_THAT(text, HasSubstr("test.toml: 2000 mistakes"));
  EXPECT_THAT(text, HasSubstr("... and 1800 more"));
  const std::string key(100000, 'k');
  EXPECT_LT(mistakes(minimal_and("[engine]\n" + key + " = 1\n")).size(), 1000u);
}

TEST(Mistakes, CommentsMayHoldAnyNumberOfDots) {
  EXPECT_NO_THROW(testing_support::parse(minimal_and("  # " + std::string(500, '.') + "\n")));
}

}  // namespace
}  // namespace facet
