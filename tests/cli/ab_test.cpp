// facet ab and facet bench as a script uses them, on the embedded bf16 checkpoint.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <random>
#include <set>

#include "config_text.h"
#include "run_program.h"

namespace facet::cli_test {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr std::uint64_t kSeed = 77;
constexpr std::uint64_t kVocabulary = 8192;  // of docs-5m

// One request a line, prompts of random ids.
std::string request_lines(const std::vector<int>& lengths, int max_tokens) {
  std::mt19937_64 random(kSeed);
  std::string text;
  for (const int length : lengths) {
    Json ids = Json::array();
    for (int i = 0; i < length; ++i) ids.push_back(random() % kVocabulary);
    text += Json{{"prompt_ids", ids}, {"max_tokens", max_tokens}}.dump() + "\n";
  }
  return text;
}

class Ab : public FolderTest {
 protected:
  std::string config(const std::string& name, const ConfigText& text = {}) const { return write(name, text.toml()); }

  // `plugin` holds the sliding layers; a ring cannot hold the global ones.
  std::string cache_config(const std::string& plugin) const {
    ConfigText text;
    text.kv_cache = "[kv_cache.sliding]\nplugin = \"" + plugin + "\"\n[kv_cache.global]\nplugin = \"" +
                    (plugin == "ring" ? "static" : plugin) + "\"";
    return config(plugin + ".toml", text);
  }

  std::string linear_config(const std::string& name, const std::string& linear) const {
    ConfigText text;
    text.linear = linear;
    return config(name, text);
  }

  std::string requests(const std::vector<int>& lengths = {12, 5, 20}, int max_tokens = 6) const {
    return write("requests.jsonl", request_lines(lengths, max_tokens));
  }
};

void expect_percentiles(const Json& points, const std::string& name) {
  ASSERT_TRUE(points.is_object()) << name;
  EXPECT_GT(points["p50"].get<double>(), 0) << name;
  EXPECT_LE(points["p50"].get<double>(), points["p90"].get<double>()) << name;
  EXPECT_LE(points["p90"].get<double>(), points["p99"].get<double>()) << name;
}

void expect_variant(const Json& variant) {
  for (const char* name : {"ttft_ms", "itl_ms", "end_to_end_ms", "tokens_per_second"})
    expect_percentiles(variant[name], name);
  for (const char* name : {"weights", "kv_pool", "kv_reserved_peak", "kv_used_peak", "workspace", "activations"})
    EXPECT_TRUE(variant["bytes"][name].is_number_unsigned()) << name;
  EXPECT_GT(variant["bytes"]["kv_used_peak"].get<std::uint64_t>(), 0u);
  EXPECT_LE(variant["bytes"]["kv_used_peak"].get<std::uint64_t>(),
            variant["bytes"]["kv_reserved_peak"].get<std::uint64_t>());
  EXPECT_LE(variant["bytes"]["kv_reserved_peak"].get<std::uint64_t>(),
            variant["bytes"]["kv_pool"].get<std::uint64_t>());
  EXPECT_EQ(variant["tokens_equal_to_own_first_round"].get<double>(), 1.0);
  std::set<std::string> places;
  for (const Json& use : variant["plugins"]) {
    EXPECT_GT(use["calls"].get<std::int64_t>(), 0) << use.dump();
    places.insert(use["place"].get<std::string>());
  }
  EXPECT_EQ(places, (std::set<std::string>{"linear", "attention.sliding", "attention.global", "kv_cache.sliding",
                                           "kv_cache.global", "scheduler"}));
  EXPECT_TRUE(variant["record"]["checkpoint_hash"].is_string());
}

TEST_F(Ab, ThreeCachePoliciesSayTheSame) {
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  const std::string file = requests();
  const ProgramResult result = run_facet({"ab", cache_config("static"), cache_config("ring"), cache_config("paged"),
                                          "--requests", file, "--rounds", "3", "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.text();
  const Json document = result.json();
  ASSERT_TRUE(document.is_object());
  EXPECT_EQ(document["requests"], 3);
  EXPECT_EQ(document["rounds"], 3);
  EXPECT_EQ(document["order"], (Json{"A", "B", "C", "C", "B", "A", "B", "C", "A"}));
  ASSERT_EQ(document["variants"].size(), 3u);
  for (const Json& variant : document["variants"]) expect_variant(variant);
  EXPECT_TRUE(document["variants"][0]["shares_weights_with"].is_null());
  EXPECT_EQ(document["variants"][2]["shares_weights_with"], "A");
  ASSERT_EQ(document["pairs"].size(), 3u);
  for (const Json& pair : document["pairs"]) {
    EXPECT_FALSE(pair["same_settings"].get<bool>());
    EXPECT_EQ(pair["tokens"]["equal_share"].get<double>(), 1.0) << pair.dump();
    EXPECT_EQ(pair["tokens"]["positions"], 3 * 3 * 6);
    EXPECT_EQ(pair["tokens"]["first_divergence"], (Json{nullptr, nullptr, nullptr}));
    // The same rows by another way to store them: fp32 sums in another order at most.
    EXPECT_LT(pair["mean_abs_nll_difference"].get<double>(), 1e-4);
    // Sliding layers differ in every pair; global ones do not between static and ring.
    ASSERT_EQ(pair["switched"].size(), pair["a"] == "A" && pair["b"] == "B" ? 2u : 4u);
    for (const Json& entry : pair["switched"]) EXPECT_GT(entry["calls"].get<std::int64_t>(), 0);
    for (const char* name : {"round_time", "ttft", "itl", "end_to_end"}) {
      const Json& ratio = pair[name];
      EXPECT_LE(ratio["low"].get<double>(), ratio["ratio"].get<double>()) << name;
      EXPECT_GE(ratio["high"].get<double>(), ratio["ratio"].get<double>()) << name;
      EXPECT_THAT((std::vector<std::string>{"faster", "slower", "no difference shown"}),
                  testing::Contains(ratio["verdict"].get<std::string>()));
    }
  }
}

TEST_F(Ab, SwitchThatNeverRanFails) {
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  const std::string plain = linear_config("plain.toml", "[linear]\nplugin = \"dense\"");
  const std::string switched = linear_config(
      "switched.toml", "[linear]\nplugin = \"dense\"\n[[linear.rules]]\nmin_rows = 33\nplugin = \"reference\"");
  const std::string short_prompts = requests({12, 5}, 2);
  const ProgramResult never =
      run_facet({"ab", plain, switched, "--requests", short_prompts, "--rounds", "1", "--no-nll", "--json"});
  EXPECT_EQ(never.exit_code, 1) << never.text();
  EXPECT_THAT(never.err, HasSubstr("variant B: linear: plugin 'reference'"));
  EXPECT_THAT(never.err, HasSubstr("33 to 64 rows"));
  EXPECT_THAT(never.err, Not(HasSubstr("variant A")));
  EXPECT_EQ(never.json()["error"]["kind"], "run");
  // The same two configs with a prompt that reaches the rule.
  const std::string long_prompt = requests({40}, 2);
  const ProgramResult reached =
      run_facet({"ab", plain, switched, "--requests", long_prompt, "--rounds", "1", "--no-nll", "--json"});
  ASSERT_EQ(reached.exit_code, 0) << reached.text();
  const Json pair = reached.json()["pairs"][0];
  EXPECT_EQ(pair["switched"].size(), 2u) << pair["switched"].dump();
  EXPECT_EQ(pair["round_time"]["verdict"], "no verdict");
  EXPECT_TRUE(pair["round_time"]["low"].is_null());
  EXPECT_TRUE(pair["mean_abs_nll_difference"].is_null());
}

// Both variants bind both plugins; only the row count at which one takes over differs, and no step reaches it.
TEST_F(Ab, MovedThresholdThatNeverRanFails) {
  const auto rule = [&](int rows) {
    return linear_config("from" + std::to_string(rows) + ".toml",
                         "[linear]\nplugin = \"dense\"\n[[linear.rules]]\nmin_rows = " + std::to_string(rows) +
                             "\nplugin = \"reference\"");
  };
  const ProgramResult result =
      run_facet({"ab", rule(40), rule(50), "--requests", requests({6}, 2), "--rounds", "1", "--no-nll"});
  EXPECT_EQ(result.exit_code, 1) << result.text();
  EXPECT_THAT(result.err, HasSubstr("variant A: linear: plugin 'reference'"));
  EXPECT_THAT(result.err, HasSubstr("40 to 49 rows"));
}

// The rule starts where the other variant's steps end.
TEST_F(Ab, RuleBeyondTheOtherVariantsRowsFails) {
  ConfigText longer;
  longer.engine = "threads = 2\nmax_sequences = 2\nmax_context = 256\nmax_step_tokens = 128";
  longer.linear = "[linear]\nplugin = \"dense\"\n[[linear.rules]]\nmin_rows = 65\nplugin = \"reference\"";
  const ProgramResult result = run_facet({"ab", config("short.toml"), config("longer.toml", longer), "--requests",
                                          requests({6}, 2), "--rounds", "1", "--no-nll"});
  EXPECT_EQ(result.exit_code, 1) << result.text();
  EXPECT_THAT(result.err, HasSubstr("variant B: linear: plugin 'reference'"));
  EXPECT_THAT(result.err, HasSubstr("65 to 128 rows"));
}

TEST_F(Ab, SameConfigTwiceIsNotedAndWritten) {
  const std::string file = config("same.toml"), out = (folder_ / "out.json").string();
  const ProgramResult result =
      run_facet({"ab", file, file, "--requests", requests({8, 9}, 3), "--rounds", "2", "--out", out});
  ASSERT_EQ(result.exit_code, 0) << result.text();
  EXPECT_THAT(result.out, HasSubstr("A/A"));
  EXPECT_THAT(result.out, HasSubstr("2 requests, 2 rounds after 1 to warm up"));
  EXPECT_THAT(result.out, HasSubstr("equal tokens 100.00 % of 12"));
  std::ifstream in(out);
  const Json document = Json::parse(in);
  EXPECT_TRUE(document["pairs"][0]["same_settings"].get<bool>());
  EXPECT_TRUE(document["pairs"][0]["switched"].empty());
}

// A checkpoint behind a symlink is the same checkpoint: its weights are loaded once, and its path is no difference.
TEST_F(Ab, SymlinkToOneCheckpointIsNoDifference) {
  std::filesystem::create_directory_symlink(embedded_checkpoint(), folder_ / "linked");
  ConfigText linked;
  linked.model = "linked";
  const ProgramResult result = run_facet({"ab", config("plain.toml"), config("linked.toml", linked), "--requests",
                                          requests({6}, 2), "--rounds", "1", "--no-nll", "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.text();
  const Json document = result.json();
  EXPECT_EQ(document["variants"][1]["shares_weights_with"], "A");
  EXPECT_EQ(document["pairs"][0]["differences"], Json::array());
}

// A prompt that occurs twice is reused inside a round by the paged cache, and never from one round to the next.
TEST_F(Ab, NothingIsReusedAcrossRounds) {
  ConfigText text;
  text.kv_cache = "[kv_cache]\nplugin = \"paged\"";
  text.scheduler = "[scheduler]\nplugin = \"continuous\"";
  const std::string file = config("paged.toml", text);
  const ProgramResult result =
      run_facet({"ab", file, file, "--requests", requests({100}, 2), "--rounds", "3", "--no-nll", "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.text();
  const Json document = result.json();
  for (const Json& variant : document["variants"]) EXPECT_EQ(variant["cached_tokens"], 0);
  // Whether the machine is busy now is not for a test to say, but the warning and the numbers must agree.
  const Json& load = document["load_average"];
  EXPECT_GE(document["processors"].get<std::int64_t>(), 1);
  const bool busy = load.is_number() && load.get<double>() > document["processors"].get<double>();
  EXPECT_EQ(result.err.find("the machine is busy") != std::string::npos, busy) << result.text();
}

TEST_F(Ab, WrongFilesAreUsageErrors) {
  const std::string good = config("good.toml"), file = requests();
  const auto expect_usage = [](const ProgramResult& result, const std::string& named) {
    EXPECT_EQ(result.exit_code, 2) << result.text();
    EXPECT_THAT(result.err, HasSubstr(named));
    EXPECT_EQ(result.out, "");
  };
  expect_usage(run_facet({"ab", good, "--requests", file}), "configs");
  expect_usage(run_facet({"ab", good, (folder_ / "absent.toml").string(), "--requests", file}), "absent.toml");
  expect_usage(run_facet({"ab", good, good, "--requests", (folder_ / "absent.jsonl").string()}), "absent.jsonl");
  expect_usage(run_facet({"ab", good, good, "--requests", write("bad.jsonl", "{\"prompt_id\": [1]}\n")}),
               "bad.jsonl:1");
  expect_usage(run_facet({"ab", good, good, "--requests", file, "--rounds", "0"}), "--rounds");
  ConfigText wrong;
  wrong.scheduler = "[scheduler]\nplugin = \"static\"\n[scheduler.options]\nordr = \"length\"";
  expect_usage(run_facet({"ab", good, config("wrong.toml", wrong), "--requests", file}), "ordr");
}

TEST_F(Ab, RequestThatCanNeverRunIsNamed) {
  const std::string good = config("good.toml");
  const ProgramResult result = run_facet({"ab", good, good, "--requests", requests({5, 300}, 4)});
  EXPECT_EQ(result.exit_code, 1) << result.text();
  EXPECT_THAT(result.err, HasSubstr("requests.jsonl:2), variant A"));
}

TEST_F(Ab, BenchReportsPrefillAndDecode) {
  const ProgramResult result = run_facet({"bench", config("bench.toml"), "--prompt-tokens", "16,48", "--generate", "8",
                                          "--batch", "1,2", "--repeat", "2", "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.text();
  const Json document = result.json();
  // Whether the machine is busy now is not for a test to say, but the warning and the numbers must agree.
  const Json& load = document["load_average"];
  EXPECT_GE(document["processors"].get<std::int64_t>(), 1);
  const bool busy = load.is_number() && load.get<double>() > document["processors"].get<double>();
  EXPECT_EQ(result.err.find("the machine is busy") != std::string::npos, busy) << result.text();
  EXPECT_GT(document["read_bandwidth"]["gb_per_s"]["median"].get<double>(), 0.01);
  ASSERT_EQ(document["runs"].size(), 4u);
  for (const Json& run : document["runs"]) {
    EXPECT_GT(run["prefill"]["tokens_per_second"]["median"].get<double>(), 0);
    const Json& decode = run["decode"];
    ASSERT_TRUE(decode.is_object()) << run.dump();
    EXPECT_GE(decode["outside_kernels"]["median"].get<double>(), 0);
    EXPECT_LT(decode["outside_kernels"]["median"].get<double>(), 1);
    EXPECT_EQ(decode["sequences_per_step"]["median"].get<double>(), run["batch"].get<double>());
    // bf16 weights of docs-5m: more than 2 bytes for each of 4 million, less than 4 for each of 8.
    EXPECT_GT(decode["weight_bytes_per_step"].get<double>(), 8e6);
    EXPECT_LT(decode["weight_bytes_per_step"].get<double>(), 32e6);
  }
}

TEST_F(Ab, BenchRefusesWhatCannotRun) {
  const std::string file = config("bench.toml");
  const ProgramResult many = run_facet({"bench", file, "--batch", "9", "--prompt-tokens", "8", "--generate", "2"});
  EXPECT_EQ(many.exit_code, 2) << many.text();
  EXPECT_THAT(many.err, HasSubstr("--batch 9 is more than engine.max_sequences 2"));
  const ProgramResult long_prompt = run_facet({"bench", file, "--batch", "1", "--prompt-tokens", "4000"});
  EXPECT_EQ(long_prompt.exit_code, 2) << long_prompt.text();
  EXPECT_THAT(long_prompt.err, HasSubstr("--prompt-tokens 4000"));
}

}  // namespace
}  // namespace facet::cli_test
