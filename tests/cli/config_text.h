// Temporary folders, and configurations of the embedded bf16 checkpoint that a test varies.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

namespace facet::cli_test {

// A folder of its own for every test, removed afterwards.
class FolderTest : public testing::Test {
 protected:
  void SetUp() override;
  void TearDown() override;
  // Writes a file below the folder and returns its path.
  std::string write(const std::string& name, const std::string& text) const;

  std::filesystem::path folder_;
};

// The parts of a config; each text is TOML.
struct ConfigText {
  std::string model;  // path of the checkpoint; empty: the embedded bf16 one
  std::string engine = "threads = 2\nmax_sequences = 2\nmax_context = 256\nmax_step_tokens = 64";
  std::string linear = "[linear]\nplugin = \"dense\"";
  std::string attention = "[attention]\nplugin = \"flash\"";
  std::string kv_cache = "[kv_cache]\nplugin = \"static\"";
  std::string scheduler = "[scheduler]\nplugin = \"static\"";

  std::string toml() const;
};

// models/gemma4/checkpoints/docs-5m
std::filesystem::path embedded_checkpoint();
// Keys anywhere in a document that docs/json.md does not name in backticks or dotted in them.
std::set<std::string> undocumented_keys(const nlohmann::json& document);
// A checkpoint folder of the reference data, or an empty path: FACET_REFERENCE_DIR (default ../shared) lacks it.
std::filesystem::path reference_checkpoint(const std::string& name);

}  // namespace facet::cli_test
