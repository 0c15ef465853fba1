// facet run: what a script relies on.
#include <fmt/ranges.h>
#include <gmock/gmock.h>

#include <fstream>

#include "config_text.h"
#include "run_program.h"

namespace facet::cli_test {
namespace {

using testing::HasSubstr;

class RunTest : public FolderTest {
 protected:
  void SetUp() override {
    FolderTest::SetUp();
    config_ = write("config.toml", ConfigText{}.toml());
    std::ifstream in(fs::path(FACET_SOURCE_DIR) / "tests/data/reference/greedy_reference.json");
    reference_ = Json::parse(in)["draft"];
  }
  // Reference prompt `index` as a file of token ids.
  std::string prompt_file(std::size_t index) const {
    return write(fmt::format("prompt{}.jsonl", index), reference_["prompts"][index].dump() + "\n");
  }

  std::string config_;
  Json reference_;
};

// Ids before the first place where the reference's two best logits are too near to tell.
std::size_t clear_tokens(const Json& gaps, std::size_t most) {
  constexpr double kClearGap = 1e-3;
  std::size_t count = 0;
  while (count < most && gaps[count].get<double>() > kClearGap) ++count;
  return count;
}

TEST_F(RunTest, GivesThePromisedDocument) {
  const std::size_t wanted = 8;
  const ProgramResult run =
      run_facet({"run", config_, "--prompt-ids", prompt_file(0), "--max-tokens", "8", "--greedy", "--json"});
  ASSERT_EQ(run.exit_code, 0) << run.text();
  EXPECT_EQ(run.err, "") << "a quiet run logs nothing in a pipe";
  const Json document = run.json();
  ASSERT_EQ(document["results"].size(), 1u);
  const Json& result = document["results"][0];
  EXPECT_EQ(result["prompt_ids"], reference_["prompts"][0]);
  ASSERT_EQ(result["ids"].size(), wanted);
  const std::size_t clear = clear_tokens(reference_["top2_gap"][0], wanted);
  ASSERT_GT(clear, 0u);
  for (std::size_t i = 0; i < clear; ++i) EXPECT_EQ(result["ids"][i], reference_["greedy"][0][i]) << "token " << i;
  EXPECT_TRUE(result["text"].is_string());
  EXPECT_NE(result["text"], "");
  EXPECT_EQ(result["finish_reason"], "length");
  EXPECT_GT(result["ttft_ms"].get<double>(), 0.0);
  for (const char* point : {"p50", "p90", "p99"}) EXPECT_GT(result["itl_ms"][point].get<double>(), 0.0) << point;
  EXPECT_LE(result["itl_ms"]["p50"], result["itl_ms"]["p99"]);
  EXPECT_EQ(document["metrics"]["generated_tokens"], 8);
  EXPECT_EQ(document["metrics"]["prefill_tokens"], reference_["prompts"][0].size());
  const Json& record = document["record"];
  EXPECT_THAT(record["config"].get<std::string>(), HasSubstr("plugin = "));
  EXPECT_EQ(record["checkpoint"], fs::canonical(embedded_checkpoint()).string());
  EXPECT_EQ(record["checkpoint_hash"].get<std::string>().size(), 16u);
  std::vector<std::string> called;
  for (const Json& plugin : record["plugins"]) {
    if (plugin["calls"].get<std::int64_t>() > 0) called.push_back(plugin["name"]);
    EXPECT_TRUE(fs::exists(plugin["file"].get<std::string>())) << plugin.dump();
    EXPECT_EQ(plugin["file_hash"].get<std::string>().size(), 16u);
  }
  EXPECT_THAT(called, testing::IsSupersetOf({"dense", "flash", "static"}));
  const Json plan = run_facet({"plan", config_, "--json"}).json();
  EXPECT_EQ(plan["kv_forms"].size(), 2u);
  EXPECT_EQ(record["kv_forms"], plan["kv_forms"]);
}

TEST_F(RunTest, PrintsTextWithoutJson) {
  const ProgramResult run =
      run_facet({"run", config_, "--prompt", "The documentation", "--max-tokens", "6", "--greedy"});
  ASSERT_EQ(run.exit_code, 0) << run.text();
  EXPECT_GT(run.out.size(), 1u);
  EXPECT_THAT(run.out, testing::Not(HasSubstr("tokens/s")));
  EXPECT_THAT(run.err, HasSubstr("6 tokens in"));
}

TEST_F(RunTest, LogsGoToStderrAndStdoutStaysOneDocument) {
  const ProgramResult run = run_facet({"run", config_, "--prompt-ids", prompt_file(0), "--max-tokens", "2", "--greedy",
                                       "--json", "--log-level", "debug"});
  ASSERT_EQ(run.exit_code, 0) << run.text();
  EXPECT_EQ(run.json()["results"].size(), 1u);
  EXPECT_THAT(run.err, HasSubstr("resolved config"));
}

// The second reference prompt ends its text after eleven tokens.
TEST_F(RunTest, StopsAtTheModelsEndTokens) {
  const Json& expected = reference_["greedy"][1];
  const auto end = std::find(expected.begin(), expected.end(), 1);
  ASSERT_NE(end, expected.end());
  const auto count = static_cast<std::size_t>(end - expected.begin()) + 1;
  ASSERT_EQ(clear_tokens(reference_["top2_gap"][1], count), count) << "the reference is too near a tie";
  const std::vector<std::string> common = {"run",          config_, "--prompt-ids", prompt_file(1),
                                           "--max-tokens", "20",    "--greedy",     "--json"};
  const Json stopped = run_facet(common).json()["results"][0];
  EXPECT_EQ(stopped["finish_reason"], "stop");
  EXPECT_EQ(stopped["ids"], Json(std::vector<Json>(expected.begin(), end + 1)));
  std::vector<std::string> further = common;
  further.push_back("--ignore-eos");
  const Json ignored = run_facet(further).json()["results"][0];
  EXPECT_EQ(ignored["finish_reason"], "length");
  EXPECT_EQ(ignored["ids"].size(), 20u);
}

TEST_F(RunTest, SeedsRepeatAndDiffer) {
  const auto sample = [&](const std::string& seed) {
    const ProgramResult run = run_facet({"run", config_, "--prompt-ids", prompt_file(0), "--max-tokens", "24",
                                         "--temperature", "1.5", "--seed", seed, "--ignore-eos", "--json"});
    EXPECT_EQ(run.exit_code, 0) << run.text();
    return run.json()["results"][0]["ids"];
  };
  const Json first = sample("7");
  EXPECT_EQ(first, sample("7"));
  // 24 draws at this temperature agree for two seeds with a chance far below 1e-9.
  EXPECT_NE(first, sample("8"));
}

TEST_F(RunTest, ReadsRequestsWithArrivalPriorityAndSampling) {
  const std::string file = write(
      "requests.jsonl",
      R"({"prompt_ids":[2,4934,778],"max_tokens":3,"arrival_ms":150,"priority":1})"
      "\n\n"
      R"({"prompt":"The documentation","max_tokens":2,"sampling":{"temperature":0.8,"top_k":20,"top_p":0.9,"seed":3}})"
      "\n"
      R"({"prompt_ids":[2,565,281],"max_tokens":0})"
      "\n");
  const ProgramResult run = run_facet({"run", config_, "--requests", file, "--ignore-eos", "--json"});
  ASSERT_EQ(run.exit_code, 0) << run.text();
  const Json document = run.json();
  ASSERT_EQ(document["results"].size(), 3u);
  EXPECT_EQ(document["results"][0]["prompt_ids"], Json({2, 4934, 778})) << "results keep the order of the file";
  EXPECT_EQ(document["results"][0]["ids"].size(), 3u);
  EXPECT_EQ(document["results"][1]["prompt_ids"][0], 2) << "a text prompt begins with one BOS";
  EXPECT_NE(document["results"][1]["prompt_ids"][1], 2);
  EXPECT_EQ(document["results"][1]["ids"].size(), 2u);
  EXPECT_EQ(document["results"][2]["ids"].size(), 0u);
  EXPECT_TRUE(document["results"][2]["ttft_ms"].is_null());
  EXPECT_GE(document["metrics"]["seconds"].get<double>(), 0.15) << "the first request arrives after 150 ms";
}

TEST_F(RunTest, DoesNotDependOnTheWorkingDirectory) {
  const std::string relative = fs::relative(embedded_checkpoint(), fs::canonical(folder_)).string();
  ConfigText text;
  text.model = relative;
  const std::string config = write("relative.toml", text.toml());
  const std::string prompt = prompt_file(0);
  const std::vector<std::string> arguments = {"run",          config, "--prompt-ids", prompt,
                                              "--max-tokens", "4",    "--greedy",     "--json"};
  const ProgramResult here = run_facet(arguments, folder_);
  const ProgramResult root = run_facet(arguments, "/");
  ASSERT_EQ(here.exit_code, 0) << here.text();
  ASSERT_EQ(root.exit_code, 0) << root.text();
  EXPECT_EQ(here.json()["results"][0]["ids"], root.json()["results"][0]["ids"]);
}

}  // namespace
}  // namespace facet::cli_test
