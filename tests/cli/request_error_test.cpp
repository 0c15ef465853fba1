// Requests that cannot be served, and files of requests that cannot be read.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <csignal>

#include "config_text.h"
#include "run_program.h"

namespace facet::cli_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class RequestErrorTest : public FolderTest {
 protected:
  void SetUp() override {
    FolderTest::SetUp();
    config_ = write("config.toml", ConfigText{}.toml());  // one sequence holds 256 rows
  }
  ProgramResult run_lines(const std::string& lines) const {
    return run_facet(
        {"run", config_, "--requests", write("requests.jsonl", lines), "--greedy", "--ignore-eos", "--json"});
  }
  std::string config_;
};

// The others run to their end; the document holds all of them.
TEST_F(RequestErrorTest, ARequestLongerThanThePoolIsRefusedAndTheOthersRun) {
  const ProgramResult run = run_lines(
      "{\"prompt_ids\":[2,565],\"max_tokens\":3}\n"
      "{\"prompt_ids\":[2,565,281],\"max_tokens\":255}\n"
      "{\"prompt_ids\":[2,4934],\"max_tokens\":2}\n");
  EXPECT_EQ(run.exit_code, 1) << run.text();
  const Json document = run.json();
  ASSERT_EQ(document["results"].size(), 3u);
  EXPECT_EQ(document["results"][0]["ids"].size(), 3u);
  EXPECT_EQ(document["results"][2]["ids"].size(), 2u);
  const Json& refused = document["results"][1];
  EXPECT_EQ(refused["finish_reason"], "error");
  EXPECT_EQ(refused["prompt_ids"], Json({2, 565, 281}));
  EXPECT_EQ(refused["ids"].size(), 0u);
  EXPECT_TRUE(refused["ttft_ms"].is_null());
  // 3 prompt tokens and 255 generated ones, of which the last stores no row.
  EXPECT_THAT(refused["error"].get<std::string>(),
              AllOf(HasSubstr("3 tokens"), HasSubstr("255"), HasSubstr("257"), HasSubstr("256")));
  EXPECT_THAT(run.err, AllOf(HasSubstr("1 of 3 requests"), HasSubstr("request 2:"), HasSubstr("requests.jsonl:2:"),
                             HasSubstr("257")));
}

// Three requests, of which the first ends before a fault of the scheduler, or a signal.
class EndedRequestTest : public FolderTest {
 protected:
  ProgramResult run(int signal, const std::vector<std::string>& options) const {
    ConfigText text;
    text.scheduler = fmt::format("[scheduler]\nplugin = \"{}/scheduler_ends_early.so\"\noptions = {{ signal = {} }}",
                                 FACET_FIXTURE_DIR, signal);
    const std::string requests = write("requests.jsonl",
                                       "{\"prompt_ids\":[2,565],\"max_tokens\":3}\n"
                                       "{\"prompt_ids\":[2,281],\"max_tokens\":200}\n"
                                       "{\"prompt_ids\":[2,4934],\"max_tokens\":200}\n");
    std::vector<std::string> words = {"run", write("early.toml", text.toml()), "--requests", requests, "--ignore-eos"};
    words.insert(words.end(), options.begin(), options.end());
    return run_facet(words);
  }
  static void expect_first_only(const ProgramResult& run) {
    const Json document = run.json();
    ASSERT_EQ(document["results"].size(), 3u) << run.text();
    EXPECT_EQ(document["results"][0]["ids"].size(), 3u);
    EXPECT_TRUE(document["results"][1].is_null());
    EXPECT_TRUE(document["results"][2].is_null());
    EXPECT_TRUE(document.contains("error"));
  }
};

TEST_F(EndedRequestTest, AFaultOfTheSchedulerLosesNoFinishedRequest) {
  const ProgramResult json = run(0, {"--json"});
  EXPECT_EQ(json.exit_code, 1) << json.text();
  expect_first_only(json);
  EXPECT_THAT(json.json()["error"]["text"].get<std::string>(), HasSubstr("one sequence is enough"));
  const ProgramResult text = run(0, {});
  EXPECT_EQ(text.exit_code, json.exit_code) << text.text();
  EXPECT_THAT(text.out, AllOf(HasSubstr("--- request 1 (2 prompt tokens, 3 generated"), Not(HasSubstr("request 2"))));
  EXPECT_THAT(text.err, HasSubstr("one sequence is enough"));
}

TEST_F(EndedRequestTest, ASignalLosesNoFinishedRequest) {
  for (const int signal : {SIGINT, SIGTERM}) {
    const ProgramResult json = run(signal, {"--json"});
    EXPECT_EQ(json.signal, signal) << json.text();
    expect_first_only(json);
    EXPECT_THAT(json.err, HasSubstr(fmt::format("stopped by signal {} when 1 of 3 requests had ended", signal)));
  }
  const ProgramResult text = run(SIGINT, {});
  EXPECT_EQ(text.signal, SIGINT) << text.text();
  EXPECT_THAT(text.out, AllOf(HasSubstr("--- request 1 (2 prompt tokens, 3 generated"), Not(HasSubstr("request 2"))));
}

TEST_F(RequestErrorTest, TheExactFitRuns) {
  const ProgramResult run = run_lines("{\"prompt_ids\":[2,565,281],\"max_tokens\":254}\n");
  EXPECT_EQ(run.exit_code, 0) << run.text();
  EXPECT_EQ(run.json()["results"][0]["ids"].size(), 254u);
}

TEST_F(RequestErrorTest, IdsOutsideTheVocabularyAreNamed) {
  const ProgramResult run = run_lines(
      "{\"prompt_ids\":[2,8192],\"max_tokens\":1}\n"
      "{\"prompt_ids\":[2,-1],\"max_tokens\":1}\n"
      "{\"prompt_ids\":[2,8191],\"max_tokens\":1}\n");
  EXPECT_EQ(run.exit_code, 1) << run.text();
  const Json results = run.json()["results"];
  EXPECT_THAT(results[0]["error"].get<std::string>(),
              AllOf(HasSubstr("prompt[1]"), HasSubstr("8192"), HasSubstr("8191")));
  EXPECT_THAT(results[1]["error"].get<std::string>(), AllOf(HasSubstr("prompt[1]"), HasSubstr("-1")));
  EXPECT_EQ(results[2]["finish_reason"], "length");
}

TEST_F(RequestErrorTest, AnEmptyPromptIsRefused) {
  const ProgramResult run = run_lines("{\"prompt_ids\":[],\"max_tokens\":1}\n");
  EXPECT_EQ(run.exit_code, 1) << run.text();
  EXPECT_THAT(run.json()["results"][0]["error"].get<std::string>(), HasSubstr("empty"));
}

TEST_F(RequestErrorTest, SamplingOutOfRangeIsRefused) {
  const ProgramResult run =
      run_lines("{\"prompt_ids\":[2],\"max_tokens\":1,\"sampling\":{\"temperature\":-1,\"top_p\":0}}\n");
  EXPECT_EQ(run.exit_code, 1) << run.text();
  EXPECT_THAT(run.json()["results"][0]["error"].get<std::string>(),
              AllOf(HasSubstr("temperature"), HasSubstr("top_p")));
}

struct BadFile {
  const char* name;
  const char* option;
  const char* text;
  std::vector<const char*> message;  // all of them are in it
};

void PrintTo(const BadFile& file, std::ostream* out) {
  *out << file.name;
}

class BadFileTest : public RequestErrorTest, public testing::WithParamInterface<BadFile> {};

TEST_P(BadFileTest, EndsWithPlaceAndReason) {
  const std::string file = write("input.jsonl", GetParam().text);
  const ProgramResult run = run_facet({"run", config_, GetParam().option, file, "--json"});
  EXPECT_EQ(run.exit_code, 2) << run.text();
  const Json error = run.json()["error"];
  EXPECT_EQ(error["kind"], "usage");
  for (const char* part : GetParam().message) {
    EXPECT_THAT(run.err, HasSubstr(part));
    EXPECT_THAT(error["text"].get<std::string>(), HasSubstr(part));
  }
  EXPECT_THAT(run.err, testing::Not(HasSubstr("json.exception")));
}

INSTANTIATE_TEST_SUITE_P(
    Files, BadFileTest,
    testing::Values(
        BadFile{"broken_json", "--prompt-ids", "[2,3]\n[2,\n", {"input.jsonl:2: not valid JSON: column "}},
        BadFile{"trailing_comma", "--requests", "{\"prompt\":\"a\",}\n", {"input.jsonl:1: not valid JSON: column 15"}},
        BadFile{"huge_number", "--prompt-ids", "[1e999]\n", {"input.jsonl:1: not valid JSON: number overflow"}},
        BadFile{"not_ids", "--prompt-ids", "[2,3]\n\n[2,\"a\"]\n", {"input.jsonl:3:", "array of token ids"}},
        BadFile{"fraction", "--prompt-ids", "[2,3.5]\n", {"input.jsonl:1:", "array of token ids"}},
        BadFile{"object", "--prompt-ids", "{\"prompt\":\"a\"}\n", {"input.jsonl:1:"}},
        BadFile{"nothing", "--prompt-ids", "\n\n", {"input.jsonl", "no sequence"}},
        BadFile{"unknown_key",
                "--requests",
                "{\"prompt_ids\":[2],\"max_tokn\":1}\n",
                {"input.jsonl:1:", "max_tokn", "did you mean 'max_tokens'"}},
        BadFile{"unknown_sampling",
                "--requests",
                "{\"prompt_ids\":[2],\"sampling\":{\"temprature\":1}}\n",
                {"input.jsonl:1:", "temprature", "did you mean 'temperature'"}},
        BadFile{"two_prompts", "--requests", "{\"prompt_ids\":[2],\"prompt\":\"a\"}\n", {"input.jsonl:1:", "either"}},
        BadFile{"no_prompt", "--requests", "{\"max_tokens\":2}\n", {"input.jsonl:1:", "prompt"}},
        BadFile{"text_count",
                "--requests",
                "{\"prompt_ids\":[2],\"max_tokens\":\"5\"}\n",
                {"input.jsonl:1:", "max_tokens", "whole number"}},
        BadFile{"many_tokens",
                "--requests",
                "{\"prompt_ids\":[2],\"max_tokens\":1}\n{\"prompt_ids\":[2],\"max_tokens\":2147483649}\n",
                {"input.jsonl:2:", "max_tokens", "2147483649", "[0, 2147483648]"}},
        BadFile{"negative_tokens",
                "--requests",
                "{\"prompt_ids\":[2],\"max_tokens\":-1}\n",
                {"input.jsonl:1:", "max_tokens", "-1"}},
        BadFile{"priority",
                "--requests",
                "{\"prompt_ids\":[2],\"priority\":4294967296}\n",
                {"input.jsonl:1:", "priority", "4294967296"}},
        BadFile{"seed",
                "--requests",
                "{\"prompt_ids\":[2],\"sampling\":{\"seed\":-1}}\n",
                {"input.jsonl:1:", "seed", "-1"}},
        BadFile{
            "arrival", "--requests", "{\"prompt_ids\":[2],\"arrival_ms\":1e300}\n", {"input.jsonl:1:", "arrival_ms"}},
        BadFile{"early", "--requests", "{\"prompt_ids\":[2],\"arrival_ms\":-5}\n", {"input.jsonl:1:", "arrival_ms"}},
        BadFile{"an_array", "--requests", "[1,2]\n", {"input.jsonl:1:", "object"}}),
    [](const testing::TestParamInfo<BadFile>& param) { return param.param.name; });

}  // namespace
}  // namespace facet::cli_test
