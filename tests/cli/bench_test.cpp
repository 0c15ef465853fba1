// facet bench: synthetic models, devices and limits on memory, each decided before weights are read.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <unistd.h>

#include "config_text.h"
#include "run_program.h"

namespace facet::cli_test {
namespace {

using testing::AllOf;
using testing::ContainsRegex;
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
                             HasSubstr("the weights alone take")));
  EXPECT_LT(run.peak_rss_bytes, std::int64_t{1} << 30);
}

// More sequences than any machine has memory for; the refusal comes before weights are made and names what set it.
TEST_F(BenchTest, APlanAboveTheMachinesMemoryIsRefused) {
  const auto memory = static_cast<std::int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
  const ProgramResult run = run_facet({"bench", "--synthetic", "gemma4-12b", "--device", "cpu", "--batch", "100000",
                                       "--prompt-tokens", "20000", "--generate", "8"});
  EXPECT_EQ(run.exit_code, 1) << run.text();
  EXPECT_THAT(run.err, HasSubstr(fmt::format("more than the machine's memory of {} bytes", memory)));
  EXPECT_THAT(run.err, Not(HasSubstr("engine.max_sequences")));
  EXPECT_LT(run.peak_rss_bytes, std::int64_t{1} << 30);
  const ProgramResult limited = run_facet({"bench", "--synthetic", "gemma4-12b", "--device", "cpu", "--batch", "100000",
                                           "--prompt-tokens", "20000", "--generate", "8", "--memory-limit", "64GiB"});
  EXPECT_EQ(limited.exit_code, 1) << limited.text();
  EXPECT_THAT(limited.err, AllOf(HasSubstr("built-in configuration: the plan takes"),
                                 ContainsRegex("would fit: --batch [0-9]+ \\(now 100000\\)")));
}

TEST_F(BenchTest, RefusalsOfTheBuiltInConfigurationNameOptions) {
  const auto refused = [](std::vector<std::string> more) {
    std::vector<std::string> arguments = {"bench", "--synthetic", "gemma4-12b", "--device", "cpu"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const ProgramResult run = run_facet(arguments);
    EXPECT_EQ(run.exit_code, 2) << run.text();
    return run.err;
  };
  EXPECT_THAT(refused({"--profile"}), HasSubstr("built-in configuration: cannot be measured:"));
  EXPECT_THAT(refused({"--prompt-tokens", "300000", "--generate", "8"}),
              AllOf(HasSubstr("--prompt-tokens and --generate together: 300008"), Not(HasSubstr("max_context"))));
}

TEST_F(BenchTest, NumbersAreDecimal) {
  const std::string file = write("config.toml", ConfigText{}.toml());
  const ProgramResult run = run_facet(
      {"bench", file, "--prompt-tokens", "010,8", "--generate", "02", "--batch", "1", "2", "--repeat", "01", "--json"});
  ASSERT_EQ(run.exit_code, 0) << run.text();
  EXPECT_THAT(run.err, AllOf(HasSubstr("bench: read rate of the memory\nbench: loading "),
                             HasSubstr("bench: 1 of 4, batch 1, prompts of 10 tokens, 2 generated"),
                             HasSubstr("bench: 4 of 4, batch 2, prompts of 8 tokens, 2 generated")));
  const Json document = run.json();
  EXPECT_EQ(document["repeat"], 1);
  EXPECT_THAT(undocumented_keys(document), testing::IsEmpty());
  std::vector<std::vector<std::int64_t>> shapes;
  for (const Json& one : document["runs"])
    shapes.push_back({one["batch"].get<std::int64_t>(), one["prompt_tokens"].get<std::int64_t>()});
  EXPECT_THAT(shapes, testing::ElementsAre(testing::ElementsAre(1, 10), testing::ElementsAre(1, 8),
                                           testing::ElementsAre(2, 10), testing::ElementsAre(2, 8)));
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
  EXPECT_THAT(many.err, HasSubstr("--batch 3 is more than engine.max_sequences 2; measure fewer"));
}

TEST_F(BenchTest, UnknownNamesAndMissingOnesAreNamed) {
  const ProgramResult unknown = run_facet({"bench", "--synthetic", "gemma4-12"});
  EXPECT_EQ(unknown.exit_code, 2) << unknown.text();
  EXPECT_THAT(unknown.err, AllOf(HasSubstr("--synthetic: 'gemma4-12'"), HasSubstr("did you mean 'gemma4-12b'")));
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
  EXPECT_THAT(bench.err,
              AllOf(HasSubstr("--device: 'cuda' is not available"), HasSubstr("/nonexistent/libfacet_cuda.so")));
  ConfigText text;
  text.engine = "device = \"cuda\"";
  const std::string file = write("device.toml", text.toml());
  // Who asked for it: the file, in every command that opens one, or the option in its place.
  const std::string named = (fs::canonical(folder_) / "device.toml").string() + ":4: engine.device = \"cuda\"";
  const std::string requests = write("requests.jsonl", "{\"prompt_ids\": [1, 2, 3], \"max_tokens\": 2}\n");
  for (const std::vector<std::string>& command : std::vector<std::vector<std::string>>{
           {"run", file, "--prompt", "a"}, {"bench", file}, {"ab", file, file, "--requests", requests}}) {
    const ProgramResult refused = run_facet(command, {}, kNoCuda);
    EXPECT_EQ(refused.exit_code, 2) << refused.text();
    EXPECT_THAT(refused.err, HasSubstr(named));
  }
  const std::string cpu_file = write("cpu.toml", ConfigText{}.toml());
  const ProgramResult option = run_facet({"bench", cpu_file, "--device", "cuda"}, {}, kNoCuda);
  EXPECT_EQ(option.exit_code, 2) << option.text();
  EXPECT_THAT(option.err, AllOf(HasSubstr("--device: 'cuda' is not available"), Not(HasSubstr("engine.device"))));
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
    EXPECT_THAT(above.err, HasSubstr((fs::canonical(folder_) / "config.toml").string() + ": the plan takes"));
    command.back() = "10GiB";
    const ProgramResult within = run_facet(command);
    EXPECT_EQ(within.exit_code, 0) << command[0] << within.text();
    EXPECT_THAT(within.err, Not(HasSubstr("limit"))) << command[0];
  }
}

// Where two files are given, the one that does not fit is named.
TEST_F(BenchTest, TheRefusalNamesTheSecondFile) {
  ConfigText text;
  const std::string small = write("small.toml", text.toml());
  const Json plan = run_facet({"plan", small, "--json"}).json();
  text.engine = "threads = 2\nmax_sequences = 64\nmax_context = 2048\nmax_step_tokens = 64";
  const std::string large = write("large.toml", text.toml());
  const std::string tokens = write("tokens.jsonl", "[1, 2, 3, 4]\n");
  const std::string requests = write("requests.jsonl", "{\"prompt_ids\": [1, 2, 3], \"max_tokens\": 2}\n");
  const std::string limit = std::to_string(plan["total"].get<std::int64_t>());
  for (const std::vector<std::string>& command : std::vector<std::vector<std::string>>{
           {"ab", small, large, "--requests", requests, "--memory-limit", limit},
           {"eval", small, "--against", large, "--tokens", tokens, "--memory-limit", limit}}) {
    const ProgramResult run = run_facet(command);
    EXPECT_EQ(run.exit_code, 1) << run.text();
    EXPECT_THAT(run.err, AllOf(HasSubstr((fs::canonical(folder_) / "large.toml").string() + ": the plan takes"),
                               Not(HasSubstr("small.toml"))));
  }
}

}  // namespace
}  // namespace facet::cli_test
