// Sequences and configurations of the tests of facet eval --against.
#pragma once

#include <gtest/gtest.h>

#include <random>

#include "config_text.h"
#include "run_program.h"

namespace facet::cli_test {

using Sequences = std::vector<std::vector<std::int32_t>>;

// Two of one length and one that needs several steps of 64 tokens.
inline Sequences random_sequences() {
  std::mt19937 random(20251130);
  Sequences sequences;
  for (const std::size_t length : {24u, 40u, 24u, 150u}) {
    std::vector<std::int32_t> tokens = {2};
    while (tokens.size() < length) tokens.push_back(static_cast<std::int32_t>(random() % 8192));
    sequences.push_back(tokens);
  }
  return sequences;
}

class EvalAgainstTest : public FolderTest {
 protected:
  void SetUp() override {
    FolderTest::SetUp();
    std::string text;
    for (const auto& tokens : random_sequences()) text += Json(tokens).dump() + "\n";
    tokens_ = write("tokens.jsonl", text);
    plain_ = config("plain", ConfigText{}, "checkpoint");
  }
  std::string config(const std::string& name, const ConfigText& text, const std::string& head) const {
    std::string toml = text.toml();
    toml.replace(toml.find("\n[engine]"), 1, "\nhead = \"" + head + "\"\n");
    return write(name + ".toml", toml);
  }
  std::string int8_head() const {
    ConfigText text;
    text.linear = "[linear]\nplugin = \"dense\"\nfallback = [\"w4a16\"]";
    return config("head", text, "int8");
  }
  Json eval(const std::string& file, const std::string& against, const std::vector<std::string>& more = {}) const {
    std::vector<std::string> arguments = {"eval", file, "--tokens", tokens_, "--json"};
    if (!against.empty()) arguments.insert(arguments.end(), {"--against", against});
    arguments.insert(arguments.end(), more.begin(), more.end());
    const ProgramResult run = run_facet(arguments);
    EXPECT_EQ(run.exit_code, 0) << run.text();
    return run.json();
  }

  std::string tokens_, plain_;
};

}  // namespace facet::cli_test
