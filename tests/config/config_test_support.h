// What the configuration tests share: a folder that goes away, a file that loads, and the text of an error.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "facet/base/error.h"
#include "facet/config/config.h"

namespace facet::testing_support {

// A fresh folder under the test's temporary folder, removed with everything in it.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = testing::TempDir() + "facet_config_XXXXXX";
    if (::mkdtemp(pattern.data()) == nullptr) ADD_FAILURE() << "no temporary folder " << pattern;
    path_ = std::filesystem::canonical(pattern);
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path write(const std::filesystem::path& name, std::string_view text) const {
    const std::filesystem::path file = path_ / name;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file, std::ios::binary) << text;
    return file;
  }

 private:
  std::filesystem::path path_;
};

// Changes the working directory for one scope.
class WorkingDirectory {
 public:
  explicit WorkingDirectory(const std::filesystem::path& path) : before_(std::filesystem::current_path()) {
    std::filesystem::current_path(path);
  }
  ~WorkingDirectory() {
    std::error_code ignored;
    std::filesystem::current_path(before_, ignored);
  }
  WorkingDirectory(const WorkingDirectory&) = delete;
  WorkingDirectory& operator=(const WorkingDirectory&) = delete;

 private:
  std::filesystem::path before_;
};

// The least that loads. Twelve lines, so what a test appends begins on line 13.
inline constexpr std::string_view kMinimal =
    "[model]\n"
    "path = \"m\"\n"
    "[linear]\n"
    "plugin = \"reference\"\n"
    "[attention]\n"
    "plugin = \"flash\"\n"
    "[kv_cache]\n"
    "plugin = \"static\"\n"
    "[scheduler]\n"
    "plugin = \"static\"\n"
    "# its options, so that a test appends some\n"
    "[scheduler.options]\n";

inline Config parse(std::string_view text) {
  return parse_config(text, "test.toml", "/conf");
}

// The message of the error that parsing must give; "" (and a failure) when it does not.
inline std::string mistakes(std::string_view text) {
  try {
    parse(text);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::config);
    return error.message();
  }
  ADD_FAILURE() << "accepted:\n" << text;
  return "";
}

}  // namespace facet::testing_support
