// facet bench: synthetic models, devices and limits on memory, each decided before weights are read.
#include <gmock/gmock.h>

#include "config_text.h"
#include "run_program.h"

namespace facet::cli_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

using BenchTest = FolderTest;

// As on a machine without CUDA, wherever the test runs.
const std::vector<std::pair<std::string, std::string>> kNoCuda = {
    {"FACET_CUDA_LIBRARY", "/nonexistent/libfacet_cuda.so"}};

TEST_F(BenchTest, ASyntheticModelNeedsNoFile) {
  const ProgramResult run = run_facet({"bench", "--synthetic", "gemma4-12b", "--batch", "3", "--prompt-tokens", "64",
                                       "--generate", "8", "--memory-limit", "1GiB"});
  EXPECT_EQ(run.exit_code, 1) << run.text();
  // The plan of 12 billion INT4 weights: a limit of 1 GiB stops it before they are made.
  EXPECT_THAT(run.err, AllOf(HasSubstr("more than the limit of 1073741824 bytes"), HasSubstr("weights, packed"),
                             HasSubstr("engine.max_step_tokens")));
  EXPECT_LT(run.peak_rss_bytes, std::int64_t{1} << 30);
}

TEST_F(BenchTest, ASyntheticModelTakesThePlaceOfTheFiles) {
  ConfigText text;
  text.linear = "[linear]\nplugin = \"w4a8\"";
  const std::string file = write("config.toml", text.toml());
  const ProgramResult run = run_facet({"bench", file, "--synthetic", "gemma4-12b", "--batch", "1", "--prompt-tokens",
                                       "64", "--generate", "8", "--memory-limit", "1GiB"});
  EXPECT_EQ(run.exit_code, 1) << run.text();
  EXPECT_THAT(run.err, HasSubstr("weights, packed"));
  // Its sizes stay those of the file.
  const ProgramResult many = run_facet({"bench", file, "--synthetic", "gemma4-12b", "--batch", "3"});
  EXPECT_EQ(many.exit_code, 2) << many.text();
  EXPECT_THAT(many.err, HasSubstr("--batch 3 is more than engine.max_sequences 2"));
}

TEST_F(BenchTest, UnknownNamesAndMissingOnesAreNamed) {
  const ProgramResult unknown = run_facet({"bench", "--synthetic", "gemma4-12"});
  EXPECT_EQ(unknown.exit_code, 2) << unknown.text();
  EXPECT_THAT(unknown.err, HasSubstr("did you mean 'gemma4-12b'"));
  const ProgramResult neither = run_facet({"bench"});
  EXPECT_EQ(neither.exit_code, 2) << neither.text();
  EXPECT_THAT(neither.err, HasSubstr("--synthetic gemma4-12b"));
  const ProgramResult device = run_facet({"bench", "--synthetic", "gemma4-12b", "--device", "tpu"});
  EXPECT_EQ(device.exit_code, 2) << device.text();
  EXPECT_THAT(device.err, HasSubstr("--device"));
}

TEST_F(BenchTest, WithoutCudaTheReasonIsGiven) {
  const ProgramResult bench = run_facet({"bench", "--synthetic", "gemma4-12b", "--device", "cuda"}, {}, kNoCuda);
  EXPECT_EQ(bench.exit_code, 2) << bench.text();
  EXPECT_THAT(bench.err, AllOf(HasSubstr("'cuda' is not available"), HasSubstr("/nonexistent/libfacet_cuda.so")));
  ConfigText text;
  text.engine = "device = \"cuda\"";
  const std::string file = write("device.toml", text.toml());
  const ProgramResult plan = run_facet({"plan", file}, {}, kNoCuda);
  EXPECT_EQ(plan.exit_code, 2) << plan.text();
  EXPECT_THAT(plan.err, AllOf(HasSubstr("'cuda' is not available"), HasSubstr("a machine that has one")));
  const ProgramResult cpu = run_facet({"bench", file, "--device", "cpu", "--batch", "9"}, {}, kNoCuda);
  EXPECT_EQ(cpu.exit_code, 2) << cpu.text();
  EXPECT_THAT(cpu.err, HasSubstr("--batch 9 is more than engine.max_sequences 8"));
}

TEST_F(BenchTest, EveryCommandThatLoadsKnowsTheLimit) {
  const std::string file = write("config.toml", ConfigText{}.toml());
  const std::string tokens = write("tokens.jsonl", "[1, 2, 3, 4]\n");
  const std::string requests = write("requests.jsonl", "{\"prompt_ids\": [1, 2, 3], \"max_tokens\": 2}\n");
  const std::vector<std::vector<std::string>> commands = {
      {"run", file, "--prompt-ids", tokens, "--max-tokens", "2"},
      {"eval", file, "--tokens", tokens},
      {"bench", file, "--batch", "1", "--prompt-tokens", "8", "--generate", "2", "--repeat", "1"},
      {"ab", file, file, "--requests", requests, "--rounds", "2"}};
  for (std::vector<std::string> command : commands) {
    command.insert(command.end(), {"--memory-limit", "100 KiB"});
    const ProgramResult above = run_facet(command);
    EXPECT_EQ(above.exit_code, 1) << command[0] << above.text();
    EXPECT_THAT(above.err, AllOf(HasSubstr("more than the limit of 102400 bytes"), HasSubstr("largest are")))
        << command[0];
    command.back() = "10GiB";
    const ProgramResult within = run_facet(command);
    EXPECT_EQ(within.exit_code, 0) << command[0] << within.text();
    EXPECT_THAT(within.err, Not(HasSubstr("limit"))) << command[0];
  }
}

}  // namespace
}  // namespace facet::cli_test
