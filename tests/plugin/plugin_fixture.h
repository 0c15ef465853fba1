// What the tests of the loader share: a host, a folder of their own, and errors as text.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>

#include "facet/base/error.h"
#include "facet/plugin/host_services.h"
#include "facet/plugin/registry.h"

namespace facet {

namespace fs = std::filesystem;

namespace testing_support {

inline fs::path fixture(const std::string& name) {
  return fs::path(FACET_FIXTURE_DIR) / (name + ".so");
}

class PluginTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
    std::string name = fmt::format("facet_{}_{}_{}", info->test_suite_name(), info->name(), ::getpid());
    std::replace(name.begin(), name.end(), '/', '_');
    folder_ = fs::canonical(::testing::TempDir()) / name;
    fs::create_directories(folder_);
    ::unsetenv("FACET_PLUGIN_PATH");
    ::unsetenv("FACET_FIXTURE_RAN");
  }
  void TearDown() override { fs::remove_all(folder_); }

  // A copy under its own path, so that each test maps its own library.
  fs::path copy(const std::string& name, const fs::path& target) const {
    const fs::path file = folder_ / target;
    fs::create_directories(file.parent_path());
    fs::copy_file(fixture(name), file, fs::copy_options::overwrite_existing);
    return file;
  }
  fs::path write(const fs::path& target, const std::string& bytes) const {
    const fs::path file = folder_ / target;
    fs::create_directories(file.parent_path());
    std::ofstream(file, std::ios::binary) << bytes;
    return file;
  }
  static std::string read(const fs::path& file) {
    std::ifstream in(file, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(in), {});
  }

  // The text of the Error(plugin) that `call` throws; a failure when it throws none or another.
  static std::string refusal(const std::function<void()>& call) {
    try {
      call();
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::plugin) << error.what();
      return error.full_text();
    } catch (const std::exception& error) {
      ADD_FAILURE() << "not an Error: " << error.what();
      return "";
    }
    ADD_FAILURE() << "nothing was thrown";
    return "";
  }
  std::string refusal_of(const fs::path& file) {
    return refusal([&] { registry().load_file(file); });
  }
  PluginRegistry registry(std::vector<fs::path> extra = {}) const {
    return PluginRegistry(host_.table(), std::move(extra));
  }

  HostServices host_{2, "auto"};
  fs::path folder_;
};

}  // namespace testing_support

}  // namespace facet
