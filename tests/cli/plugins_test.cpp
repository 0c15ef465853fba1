// facet plugins list, describe and check.
#include <gmock/gmock.h>
#include <sys/stat.h>

#include <algorithm>

#include "config_text.h"
#include "run_program.h"

namespace facet::cli_test {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;

class PluginsTest : public FolderTest {
 protected:
  static fs::path built(const std::string& name) {
    return fs::path(FACET_BINARY_DIR) / "lib" / "facet" / "plugins" / name;
  }
  static const Json* find(const Json& list, const std::string& kind, const std::string& name) {
    for (const Json& entry : list) {
      if (entry.contains("kind") && entry["kind"] == kind && entry["name"] == name) return &entry;
    }
    return nullptr;
  }
};

TEST_F(PluginsTest, ListShowsEveryKindAndTheDirectoriesInOrder) {
  const fs::path empty = folder_ / "empty", environment = folder_ / "environment";
  fs::create_directories(empty);
  const ProgramResult run = run_facet({"plugins", "list", "--json", "--plugin-dir", empty.string()}, {},
                                      {{"FACET_PLUGIN_PATH", environment.string()}});
  ASSERT_EQ(run.exit_code, 0) << run.text();
  const Json document = run.json();
  for (const auto& [kind, name] : std::vector<std::pair<std::string, std::string>>{
           {"linear", "dense"}, {"attention", "flash"}, {"kv_cache", "paged"}, {"scheduler", "continuous"}}) {
    const Json* entry = find(document["plugins"], kind, name);
    ASSERT_NE(entry, nullptr) << kind << " " << name;
    EXPECT_EQ((*entry)["state"], "available");
    EXPECT_THAT((*entry)["devices"], Contains(kind == "scheduler" ? "any" : "cpu")) << name;
    EXPECT_EQ((*entry)["file"], fs::canonical(built(kind + "_" + name + ".so")).string());
    EXPECT_TRUE((*entry)["flags"].is_array());
  }
  ASSERT_EQ(document["directories"].size(), 3u);
  EXPECT_EQ(document["directories"][0]["path"], empty.string());
  EXPECT_EQ(document["directories"][0]["exists"], true);
  EXPECT_EQ(document["directories"][1]["path"], environment.string());
  EXPECT_EQ(document["directories"][1]["exists"], false);
}

TEST_F(PluginsTest, ListGivesTheReasonOfARefusedFile) {
  write("linear_text.so", "no library\n");
  const ProgramResult json = run_facet({"plugins", "list", "--json", "--plugin-dir", folder_.string()});
  ASSERT_EQ(json.exit_code, 0) << json.text();
  const Json document = json.json();
  const auto refused = std::find_if(document["plugins"].begin(), document["plugins"].end(),
                                    [](const Json& entry) { return entry["state"] == "refused"; });
  ASSERT_NE(refused, document["plugins"].end());
  EXPECT_THAT((*refused)["file"].get<std::string>(), HasSubstr("linear_text.so"));
  EXPECT_THAT((*refused)["reason"].get<std::string>(), HasSubstr("linear_text.so"));
  const ProgramResult text = run_facet({"plugins", "list", "--plugin-dir", folder_.string()});
  ASSERT_EQ(text.exit_code, 0) << text.text();
  EXPECT_THAT(text.out, AllOf(HasSubstr("refused"), HasSubstr("linear_text.so"), HasSubstr("searched in this order")));
}

TEST_F(PluginsTest, DescribeByNameByKindAndByFile) {
  const ProgramResult paged = run_facet({"plugins", "describe", "paged", "--json"});
  ASSERT_EQ(paged.exit_code, 0) << paged.text();
  const Json options = paged.json()["plugins"][0]["options"];
  const auto block =
      std::find_if(options.begin(), options.end(), [](const Json& option) { return option["name"] == "block_tokens"; });
  ASSERT_NE(block, options.end());
  EXPECT_EQ((*block)["type"], "integer");
  EXPECT_LE((*block)["min"], (*block)["default"]);
  EXPECT_LE((*block)["default"], (*block)["max"]);
  // Two kinds have a plugin of this name.
  EXPECT_EQ(run_facet({"plugins", "describe", "static", "--json"}).json()["plugins"].size(), 2u);
  const Json one = run_facet({"plugins", "describe", "static", "--kind", "scheduler", "--json"}).json();
  ASSERT_EQ(one["plugins"].size(), 1u);
  EXPECT_EQ(one["plugins"][0]["kind"], "scheduler");
  // A path is taken from the working directory.
  const ProgramResult file = run_facet({"plugins", "describe", "./kv_cache_paged.so"}, built("").parent_path());
  ASSERT_EQ(file.exit_code, 0) << file.text();
  EXPECT_THAT(file.out, AllOf(HasSubstr("kv_cache plugin 'paged'"), HasSubstr("block_tokens"), HasSubstr("|")));
}

TEST_F(PluginsTest, DescribeOfAnUnknownNameGivesTheNearest) {
  const ProgramResult run = run_facet({"plugins", "describe", "pagd"});
  EXPECT_EQ(run.exit_code, 3) << run.text();
  EXPECT_THAT(run.err, AllOf(HasSubstr("did you mean 'paged'"), HasSubstr("lib/facet/plugins")));
}

// A plugin for a GPU passes everything up to the question whether this machine has one.
bool for_a_missing_gpu(const Json& document) {
  if (document["verdict"] != "unavailable") return false;
  for (const Json& check : document["checks"]) {
    if (check["name"] == "probe") return check["text"].get<std::string>().find("no GPU: ") != std::string::npos;
    if (check["result"] != "pass") return false;
  }
  return false;
}

TEST_F(PluginsTest, CheckPassesEveryBuiltPlugin) {
  std::size_t checked = 0;
  for (const fs::directory_entry& entry : fs::directory_iterator(built(""))) {
    if (entry.path().extension() != ".so") continue;
    const ProgramResult run = run_facet({"plugins", "check", entry.path().string(), "--json"});
    const Json document = run.json();
    if (for_a_missing_gpu(document)) {
      EXPECT_EQ(run.exit_code, 3) << run.text();
      continue;
    }
    EXPECT_EQ(run.exit_code, 0) << run.text();
    EXPECT_EQ(document["verdict"], "accepted") << entry.path();
    for (const Json& check : document["checks"]) EXPECT_EQ(check["result"], "pass") << check.dump();
    ++checked;
  }
  EXPECT_GE(checked, 10u);
}

struct BadPlugin {
  std::string file;
  const char* failed;  // the check that refuses it
  const char* verdict = "refused";
};

void expect_refusal(const BadPlugin& bad) {
  const ProgramResult run = run_facet({"plugins", "check", bad.file, "--json"});
  EXPECT_EQ(run.exit_code, 3) << bad.file << run.text();
  const Json document = run.json();
  EXPECT_EQ(document["verdict"], bad.verdict) << bad.file;
  EXPECT_EQ(document["checks"].size(), 5u);
  bool reached = true;
  for (const Json& check : document["checks"]) {
    const bool fails = check["name"] == bad.failed;
    EXPECT_EQ(check["result"], fails ? "fail" : reached ? "pass" : "not reached") << bad.file << check.dump();
    if (!fails) continue;
    reached = false;
    EXPECT_THAT(check["text"].get<std::string>(), HasSubstr(fs::path(bad.file).filename().string()));
    EXPECT_THAT(run.err, HasSubstr(check["text"].get<std::string>()));
  }
  EXPECT_FALSE(reached) << bad.file << ": no check is named " << bad.failed;
  // For people the reason stands once, on stdout.
  const ProgramResult text = run_facet({"plugins", "check", bad.file});
  EXPECT_EQ(text.exit_code, 3) << text.text();
  for (const Json& check : document["checks"]) {
    if (!check.contains("text")) continue;
    EXPECT_THAT(text.out, HasSubstr(check["text"].get<std::string>()));
    EXPECT_THAT(text.err, AllOf(testing::Not(HasSubstr(check["text"].get<std::string>())),
                                HasSubstr(std::string("'") + bad.failed + "' failed")));
  }
}

TEST_F(PluginsTest, CheckSaysWhereAFileThatIsNoPluginFails) {
  const std::string cut = (folder_ / "cut.so").string();
  fs::copy_file(built("scheduler_static.so"), cut);
  fs::resize_file(cut, fs::file_size(cut) / 2);
  expect_refusal({cut, "stamp"});
  expect_refusal({write("text.so", "no library\n"), "stamp"});
  expect_refusal({write("empty.so", ""), "stamp"});
  expect_refusal({(folder_ / "absent.so").string(), "stamp"});
}

// A pipe that nobody writes to would be waited for.
TEST_F(PluginsTest, CheckRefusesAPipe) {
  const std::string pipe = (folder_ / "pipe.so").string();
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  const ProgramResult run = run_facet({"plugins", "check", pipe});
  EXPECT_EQ(run.exit_code, 3) << run.text();
  EXPECT_THAT(run.out, AllOf(HasSubstr(pipe), HasSubstr("needed is a regular file")));
}

TEST_F(PluginsTest, CheckSaysWhereABrokenPluginFails) {
  const fs::path broken = FACET_FIXTURE_DIR;
  expect_refusal({broken / "newer_contract.so", "stamp"});
  expect_refusal({broken / "unresolved_symbol.so", "loader"});
  expect_refusal({broken / "no_entry.so", "loader"});
  expect_refusal({broken / "bad_name.so", "descriptor"});
  expect_refusal({broken / "option_range.so", "descriptor"});
  expect_refusal({broken / "unavailable.so", "probe", "unavailable"});
  expect_refusal({broken / "throwing_probe.so", "probe"});
  expect_refusal({broken / "failing_create.so", "create"});
}

TEST_F(PluginsTest, ListTellsUnavailableFromRefused) {
  const fs::path broken = FACET_FIXTURE_DIR;
  fs::copy_file(broken / "unavailable.so", folder_ / "a.so");
  fs::copy_file(broken / "bad_name.so", folder_ / "b.so");
  const Json plugins = run_facet({"plugins", "list", "--json", "--plugin-dir", folder_.string()}).json()["plugins"];
  ASSERT_GE(plugins.size(), 2u);
  EXPECT_EQ(plugins[0]["state"], "unavailable");
  EXPECT_NE(plugins[0]["reason"], "");
  EXPECT_EQ(plugins[1]["state"], "refused");
  EXPECT_THAT(plugins[1]["reason"].get<std::string>(), HasSubstr("snake_case"));
}

}  // namespace
}  // namespace facet::cli_test
