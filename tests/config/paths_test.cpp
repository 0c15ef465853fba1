// Relative paths mean the same files wherever the program is started.
#include <gmock/gmock.h>

#include "config_test_support.h"

namespace facet {
namespace {

namespace fs = std::filesystem;
using testing_support::TemporaryFolder;
using testing_support::WorkingDirectory;

constexpr std::string_view kText = R"([model]
path = "../weights/m"
[linear]
plugin = "plugins/a.so"
fallback = ["./c.so"]
[attention]
plugin = "flash"
[kv_cache]
plugin = "static"
[scheduler]
plugin = "b.so"
[plugins]
path = ["more", "./sub/../other", ".."]
)";

void expect_files_of(const fs::path& root, const Config& config) {
  EXPECT_EQ(config.file, root / "conf/run.toml");
  EXPECT_EQ(config.base, root / "conf");
  EXPECT_EQ(config.model.path, root / "weights/m");
  EXPECT_EQ(config.linear.back().choice.plugin, "plugins/a.so");
  EXPECT_EQ(plugin_file(config, config.linear.back().choice.plugin), root / "conf/plugins/a.so");
  EXPECT_EQ(plugin_file(config, config.scheduler.plugin), root / "conf/b.so");
  EXPECT_EQ(plugin_file(config, config.linear.back().choice.fallback.at(0)), root / "conf/c.so");
  EXPECT_EQ(plugin_file(config, "/abs/d.so"), "/abs/d.so");
  // "sub" may be a symlink, so "sub/.." is not cut away.
  EXPECT_THAT(config.plugin_paths, testing::ElementsAre(root / "conf/more", root / "conf/sub/../other", root));
}

TEST(Paths, DoNotDependOnTheWorkingDirectory) {
  const TemporaryFolder folder;
  const fs::path file = folder.write("conf/run.toml", kText);
  folder.write("elsewhere/plugins/a.so", "not the plugin that is meant");
  fs::create_directories(folder.path() / "weights/m");
  for (const fs::path& start : {fs::path("/"), folder.path(), folder.path() / "conf", folder.path() / "elsewhere"}) {
    SCOPED_TRACE(start);
    const WorkingDirectory there(start);
    expect_files_of(folder.path(), load_config(file));
    expect_files_of(folder.path(), load_config(fs::relative(file)));
  }
}

TEST(Paths, AreTakenFromTheRealFileBehindSymlinks) {
  const TemporaryFolder folder;
  const fs::path file = folder.write("conf/run.toml", kText);
  fs::create_directories(folder.path() / "links/deep");
  fs::create_symlink(file, folder.path() / "links/deep/to_file.toml");
  fs::create_symlink("to_file.toml", folder.path() / "links/deep/to_link.toml");
  fs::create_directory_symlink(folder.path() / "conf", folder.path() / "links/to_folder");
  for (const char* link : {"links/deep/to_file.toml", "links/deep/to_link.toml", "links/to_folder/run.toml"}) {
    SCOPED_TRACE(link);
    expect_files_of(folder.path(), load_config(folder.path() / link));
    const WorkingDirectory there(folder.path() / "links");
    expect_files_of(folder.path(),
                    load_config(fs::relative(folder.path() / link, fs::current_path().parent_path() / "links")));
  }
}

TEST(Paths, MayHaveSpacesAndOtherAlphabets) {
  const TemporaryFolder folder;
  const fs::path root = folder.path() / "a b\t\xC3\xBC \xE6\xA8\xA1\xE5\x9E\x8B $x \"q\" 'r'";
  const fs::path file = folder.write(root.filename() / "conf/run.toml", kText);
  expect_files_of(root, load_config(file));
  std::string text(kText);
  text.replace(text.find("../weights/m"), 12, "../w \xC3\xA9/\xF0\x9F\x98\x80 m");
  const Config config = load_config(folder.write("conf/accents.toml", text));
  EXPECT_EQ(config.model.path, folder.path() / "w \xC3\xA9/\xF0\x9F\x98\x80 m");
}

TEST(Paths, OfTextWithoutAFileComeFromTheGivenBase) {
  EXPECT_EQ(parse_config(kText, "text", "/x/y").model.path, "/x/weights/m");
  EXPECT_EQ(parse_config(kText, "text", "/x/y/").model.path, "/x/weights/m");
  EXPECT_EQ(parse_config(kText, "text", "/").model.path, "/weights/m");
}

TEST(Paths, AWrittenConfigKeepsItsFilesWhenSavedElsewhere) {
  const TemporaryFolder folder;
  const Config config = load_config(folder.write("conf/run.toml", kText));
  const Config again = load_config(folder.write("far/away/copy.toml", to_toml(config)));
  EXPECT_EQ(again, config);
  EXPECT_EQ(again.linear.back().choice.plugin, folder.path() / "conf/plugins/a.so");
  EXPECT_EQ(plugin_file(again, again.scheduler.plugin), folder.path() / "conf/b.so");
}

}  // namespace
}  // namespace facet
