#include "config_text.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <utility>

namespace facet::cli_test {

namespace fs = std::filesystem;

void FolderTest::SetUp() {
  const testing::TestInfo* info = testing::UnitTest::GetInstance()->current_test_info();
  // Names of parameterised tests hold '/'.
  std::string name = fmt::format("facet_{}_{}_{}", info->test_suite_name(), info->name(), getpid());
  std::replace(name.begin(), name.end(), '/', '_');
  folder_ = fs::path(testing::TempDir()) / name;

  fs::remove_all(folder_);
  fs::create_directories(folder_);
}

void FolderTest::TearDown() {
  std::error_code ignored;
  fs::remove_all(folder_, ignored);
}

std::string FolderTest::write(const std::string& name, const std::string& text) const {
  const fs::path file = folder_ / name;
  fs::create_directories(file.parent_path());
  std::ofstream out(file, std::ios::binary);
  out << text;
  out.close();
  EXPECT_TRUE(out.good()) << file;
  return file.string();
}

std::string ConfigText::toml() const {
  return fmt::format("[model]\npath = \"{}\"\n[engine]\n{}\n{}\n{}\n{}\n{}\n",
                     model.empty() ? embedded_checkpoint().string() : model, engine, linear, attention, kv_cache,
                     scheduler);
}

fs::path embedded_checkpoint() {
  return fs::path(FACET_SOURCE_DIR) / "models" / "gemma4" / "checkpoints" / "docs-5m";
}

std::set<std::string> undocumented_keys(const nlohmann::json& document) {
  static const std::set<std::string> named = [] {
    std::set<std::string> words;
    std::ifstream in(fs::path(FACET_SOURCE_DIR) / "docs" / "json.md");
    std::string text, word;
    // Every other piece between backticks is quoted.
    for (bool quoted = false; std::getline(in, text, '`'); quoted = !quoted) {
      for (const char c : quoted ? text + "." : std::string()) {
        if ((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_') {
          word += c;
        } else {
          words.insert(std::exchange(word, {}));
        }
      }
    }
    return words;
  }();
  std::set<std::string> missing;
  for (const auto& [key, value] : document.items()) {
    if (document.is_object() && named.count(key) == 0) missing.insert(key);
    if (value.is_structured()) missing.merge(undocumented_keys(value));
  }
  return missing;
}

fs::path reference_checkpoint(const std::string& name) {
  const char* set = std::getenv("FACET_REFERENCE_DIR");
  const fs::path root = set != nullptr ? fs::path(set) : fs::path(FACET_SOURCE_DIR) / ".." / "shared";
  const fs::path folder = root / "models" / name;
  return fs::exists(folder / "config.json") ? fs::canonical(folder) : fs::path();
}

}  // namespace facet::cli_test
