// docs/json.md names every field that a command prints.
#include <gmock/gmock.h>

#include "config_text.h"
#include "run_program.h"

namespace facet::cli_test {
namespace {

class JsonDocumentTest : public FolderTest {
 protected:
  void expect_documented(std::vector<std::string> arguments) const {
    arguments.push_back("--json");
    const ProgramResult run = run_facet(arguments);
    ASSERT_EQ(run.exit_code, 0) << run.text();
    Json document = run.json();
    // Keys of buckets are lengths; their values are looked at.
    for (Json* part : {&document, document.contains("against") ? &document["against"] : nullptr}) {
      if (part == nullptr || !part->is_object() || !part->contains("buckets")) continue;
      Json values = Json::array();
      for (const auto& [length, value] : (*part)["buckets"].items()) values.push_back(value);
      (*part)["buckets"] = std::move(values);
    }
    EXPECT_THAT(undocumented_keys(document), testing::IsEmpty()) << arguments.front();
  }
};

TEST_F(JsonDocumentTest, EveryFieldIsDocumented) {
  const std::string config = write("config.toml", ConfigText{}.toml());
  const std::string tokens = write("tokens.jsonl", "[2, 3, 4]\n[2, 5]\n");
  expect_documented({"run", config, "--prompt-ids", tokens, "--max-tokens", "3"});
  expect_documented({"eval", config, "--tokens", tokens, "--against", config});
  expect_documented({"explain", config, "--all"});
  expect_documented({"explain", config, "--resolved"});
  expect_documented({"tokenize", config, "--text", "one two"});
  expect_documented({"plugins", "list"});
  expect_documented({"plugins", "describe", "ring"});
  const Json listed = run_facet({"plugins", "describe", "ring", "--json"}).json();
  expect_documented({"plugins", "check", listed["plugins"][0]["file"].get<std::string>()});
}

}  // namespace
}  // namespace facet::cli_test
