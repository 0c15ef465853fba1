// Names, paths and places.
#include <array>

#include "facet/base/text.h"
#include "facet/plugin/cuda_plugins.h"
#include "plugin_fixture.h"

namespace facet {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

class RegistryTest : public testing_support::PluginTest {
 protected:
  // The working directory for one test.
  void TearDown() override {
    fs::current_path(start_);
    PluginTest::TearDown();
  }
  fs::path start_ = fs::current_path();
};

TEST_F(RegistryTest, FindsByConventionalFileName) {
  const fs::path file = copy("scheduler_minimal", "a/scheduler_minimal.so");
  const LoadedPlugin& plugin = registry({folder_ / "a"}).load(abi::PluginKind::scheduler, "minimal", {});
  EXPECT_EQ(plugin.file, file);
  EXPECT_STREQ(plugin.descriptor->name, "minimal");
  const std::string bytes = read(file);
  EXPECT_EQ(plugin.file_hash, fnv1a(bytes.data(), bytes.size()));
}

TEST_F(RegistryTest, FindsUnderAnyFileNameAndPastRefusedFiles) {
  copy("unknown_flag", "a/a_broken.so");
  write("a/b_text.so", "text");
  const fs::path file = copy("scheduler_minimal", "a/zzz.so");
  EXPECT_EQ(registry({folder_ / "a"}).load(abi::PluginKind::scheduler, "minimal", {}).file, file);
}

TEST_F(RegistryTest, FirstDirectoryWins) {
  const fs::path first = copy("scheduler_minimal", "first/other_name.so");
  const fs::path second = copy("scheduler_minimal", "second/scheduler_minimal.so");
  ::setenv("FACET_PLUGIN_PATH", (":" + (folder_ / "second").string() + "::").c_str(), 1);
  PluginRegistry both = registry({folder_ / "first"});
  EXPECT_EQ(both.load(abi::PluginKind::scheduler, "minimal", {}).file, first);
  EXPECT_EQ(registry().load(abi::PluginKind::scheduler, "minimal", {}).file, second);
  const fs::path program = fs::canonical("/proc/self/exe").parent_path();
  EXPECT_THAT(both.directories(), ElementsAre(folder_ / "first", folder_ / "second",
                                              fs::weakly_canonical(program / "../lib/facet/plugins")));
}

TEST_F(RegistryTest, RefusedFileOfThatNameIsTheAnswer) {
  write("a/scheduler_minimal.so", "text");
  copy("scheduler_minimal", "b/scheduler_minimal.so");
  PluginRegistry plugins = registry({folder_ / "a", folder_ / "b"});
  EXPECT_THAT(refusal([&] { plugins.load(abi::PluginKind::scheduler, "minimal", {}); }),
              AllOf(HasSubstr("a/scheduler_minimal.so"), HasSubstr("7f 45 4c 46")));
}

TEST_F(RegistryTest, UnknownNameListsEveryPlaceInOrderAndTheNearestName) {
  copy("scheduler_minimal", "a/scheduler_minimal.so");
  write("b/b_text.so", "text");
  ::setenv("FACET_PLUGIN_PATH", (folder_ / "c").c_str(), 1);
  PluginRegistry plugins = registry({folder_ / "b", folder_ / "a"});
  const std::string text = refusal([&] { plugins.load(abi::PluginKind::scheduler, "minimol", {}); });
  EXPECT_THAT(text, AllOf(HasSubstr("no scheduler plugin is named 'minimol'"), HasSubstr("did you mean 'minimal'?"),
                          HasSubstr("b_text.so"), HasSubstr("no such folder"), HasSubstr("--plugin-dir")));
  std::size_t last = 0;
  for (const fs::path& directory : plugins.directories()) {
    const std::size_t at = text.find("\n    " + directory.string() + " (");
    ASSERT_NE(at, std::string::npos) << directory << " in " << text;
    EXPECT_GT(at, last);
    last = at;
  }
}

TEST_F(RegistryTest, NameOfAnotherKindIsSaid) {
  const fs::path file = copy("scheduler_minimal", "a/scheduler_minimal.so");
  EXPECT_THAT(refusal([&] { registry({folder_ / "a"}).load(abi::PluginKind::attention, "minimal", {}); }),
              AllOf(HasSubstr(file.string() + " holds 'minimal', but its kind is scheduler, asked was attention"),
                    HasSubstr("no attention plugin")));
  EXPECT_THAT(refusal([&] { registry().load(abi::PluginKind::attention, file.string(), {}); }),
              AllOf(HasSubstr(file.string()), HasSubstr("kind is scheduler ('minimal')"),
                    HasSubstr("asked was attention"), HasSubstr("name it where a scheduler plugin is chosen")));
}

TEST_F(RegistryTest, PathsAreRelativeToTheirBaseNeverToTheWorkingDirectory) {
  const fs::path file = copy("scheduler_minimal", "conf ü/plugins/a.so");
  write("elsewhere/plugins/a.so", "a different file");
  write("elsewhere/a.so", "a different file");
  for (const fs::path& directory : {fs::path("/"), folder_ / "elsewhere", folder_}) {
    fs::current_path(directory);
    EXPECT_EQ(registry().load(abi::PluginKind::scheduler, "plugins/a.so", folder_ / "conf ü").file, file);
    EXPECT_EQ(registry().load(abi::PluginKind::scheduler, "a.so", folder_ / "conf ü/plugins").file, file);
    EXPECT_EQ(registry().load(abi::PluginKind::scheduler, file.string(), "/").file, file);
  }
  fs::current_path(folder_ / "elsewhere");
  EXPECT_THAT(refusal([&] { registry().load(abi::PluginKind::scheduler, "a.so", folder_ / "conf ü"); }),
              AllOf(HasSubstr((folder_ / "conf ü/a.so").string()), HasSubstr("No such file")));
  EXPECT_THAT(refusal([&] { registry().load(abi::PluginKind::scheduler, "a.so", {}); }),
              AllOf(HasSubstr("'a.so'"), HasSubstr("relative"), HasSubstr("write the full path")));
  EXPECT_THAT(refusal([&] { registry().load(abi::PluginKind::scheduler, "a", {}); }), Not(HasSubstr("elsewhere")));
}

TEST_F(RegistryTest, RelativeEntryOfTheEnvironmentIsRefused) {
  ::setenv("FACET_PLUGIN_PATH", "plugins", 1);
  EXPECT_THAT(refusal([&] { registry(); }),
              AllOf(HasSubstr("FACET_PLUGIN_PATH"), HasSubstr("'plugins'"), HasSubstr("write the full path")));
}

TEST_F(RegistryTest, SameFileIsLoadedOnceAlsoThroughLinks) {
  const fs::path file = copy("scheduler_minimal", "a/scheduler_minimal.so");
  fs::create_symlink(file, folder_ / "a/link.so");
  fs::create_directory_symlink(folder_ / "a", folder_ / "b");
  PluginRegistry plugins = registry({folder_ / "a", folder_ / "b"});
  EXPECT_EQ(plugins.directories().size(), 2u);  // a (b is the same folder), beside the program
  const LoadedPlugin& plugin = plugins.load_file(file);
  EXPECT_EQ(&plugins.load_file(folder_ / "a/link.so"), &plugin);
  EXPECT_EQ(&plugins.load_file(folder_ / "b/scheduler_minimal.so"), &plugin);
  EXPECT_EQ(&registry().load_file(file), &plugin);
}

TEST_F(RegistryTest, ScanReportsEveryFileOnce) {
  copy("linear_minimal", "a/linear_minimal.so");
  fs::create_symlink(folder_ / "a/linear_minimal.so", folder_ / "a/zz_link.so");
  copy("unavailable", "a/m_unavailable.so");
  copy("throwing_probe", "a/n_throwing.so");
  write("a/o_text.so", "text");
  write("a/readme.txt", "no library");
  std::vector<PluginReport> reports = registry({folder_ / "a"}).scan();
  ASSERT_GE(reports.size(), 4u);
  EXPECT_EQ(reports[0].file, folder_ / "a/linear_minimal.so");
  EXPECT_TRUE(reports[0].plugin != nullptr && reports[0].available) << reports[0].reason;
  EXPECT_TRUE(reports[1].plugin != nullptr && !reports[1].available);
  EXPECT_EQ(reports[1].reason, "no device of this sort; no driver either");
  EXPECT_THAT(reports[2].reason, HasSubstr("probe fell over"));
  EXPECT_EQ(reports[3].plugin, nullptr);
  EXPECT_THAT(reports[3].reason, HasSubstr("7f 45 4c 46"));
  for (std::size_t i = 4; i < reports.size(); ++i) EXPECT_NE(reports[i].file.parent_path(), folder_ / "a");
}

// Also in a build that has none of them.
TEST_F(RegistryTest, CudaPluginsAreKnownByName) {
  EXPECT_TRUE(is_cuda_plugin(abi::PluginKind::attention, "flash_cuda"));
  EXPECT_TRUE(is_cuda_plugin(abi::PluginKind::linear, "w4a16_stream"));
  EXPECT_TRUE(is_cuda_plugin(abi::PluginKind::linear, "reference_cuda"));
  EXPECT_FALSE(is_cuda_plugin(abi::PluginKind::linear, "flash_cuda"));
  EXPECT_FALSE(is_cuda_plugin(abi::PluginKind::linear, "w4a16"));
  EXPECT_FALSE(is_cuda_plugin(abi::PluginKind::linear, ""));
#ifdef FACET_HAS_CUDA
  EXPECT_TRUE(built_with_cuda());
#else
  EXPECT_FALSE(built_with_cuda());
  EXPECT_THAT(refusal([&] { registry().load(abi::PluginKind::attention, "flash_cuda", {}); }),
              AllOf(HasSubstr("this build has no CUDA plugins"), Not(HasSubstr("correct the name"))));
#endif
}

TEST_F(RegistryTest, KindsHaveNames) {
  EXPECT_STREQ(to_string(abi::PluginKind::linear), "linear");
  EXPECT_STREQ(to_string(abi::PluginKind::attention), "attention");
  EXPECT_STREQ(to_string(abi::PluginKind::kv_cache), "kv_cache");
  EXPECT_STREQ(to_string(abi::PluginKind::scheduler), "scheduler");
  EXPECT_STREQ(to_string(static_cast<abi::PluginKind>(9)), "unknown");
}

}  // namespace
}  // namespace facet
