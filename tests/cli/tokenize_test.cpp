// facet tokenize against the reference tokenizer.
#include <gmock/gmock.h>

#include <fstream>

#include "config_text.h"
#include "run_program.h"

namespace facet::cli_test {
namespace {

class TokenizeTest : public FolderTest {};

TEST_F(TokenizeTest, GivesTheReferenceIdsOfEveryString) {
  std::ifstream in(fs::path(FACET_SOURCE_DIR) / "tests/data/reference/tokenizer_reference.json");
  const Json reference = Json::parse(in);
  ASSERT_EQ(reference.size(), 36u);
  std::string lines;
  for (const Json& entry : reference) lines += Json{{"text", entry["text"]}}.dump() + "\n";
  const ProgramResult run = run_facet(
      {"tokenize", write("config.toml", ConfigText{}.toml()), "--file", write("texts.jsonl", lines), "--json"});
  ASSERT_EQ(run.exit_code, 0) << run.text();
  const Json results = run.json()["results"];
  ASSERT_EQ(results.size(), reference.size());
  for (std::size_t i = 0; i < results.size(); ++i) {
    const std::string text = reference[i]["text"].dump();
    EXPECT_EQ(results[i]["ids"], reference[i]["ids"]) << text;
    EXPECT_EQ(results[i]["tokens"].size(), results[i]["ids"].size()) << text;
    EXPECT_EQ(results[i]["text"], reference[i]["decoded"]) << text;
  }
}

TEST_F(TokenizeTest, OneTextFromTheCommandLine) {
  const std::string config = write("config.toml", ConfigText{}.toml());
  const ProgramResult run = run_facet({"tokenize", config, "--text", "   leading", "--json"});
  ASSERT_EQ(run.exit_code, 0) << run.text();
  EXPECT_EQ(run.json()["results"][0]["ids"], Json({2, 631, 6597}));
  // An empty text is a text.
  const ProgramResult empty = run_facet({"tokenize", config, "--text", "", "--json"});
  ASSERT_EQ(empty.exit_code, 0) << empty.text();
  EXPECT_EQ(empty.json()["results"][0]["ids"], Json({2}));
}

}  // namespace
}  // namespace facet::cli_test
