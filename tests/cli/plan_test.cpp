// facet plan: numbers, limits and what would fit.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include "config_text.h"
#include "run_program.h"

namespace facet::cli_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class PlanTest : public FolderTest {
 protected:
  ProgramResult plan(const ConfigText& text, std::vector<std::string> more = {}) const {
    std::vector<std::string> arguments = {"plan", write("config.toml", text.toml()), "--json"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run_facet(arguments);
  }
};

TEST_F(PlanTest, KvBytesFollowFromTheShapes) {
  const ProgramResult run = plan({});
  ASSERT_EQ(run.exit_code, 0) << run.text();
  const Json document = run.json();
  // static keeps max_context rows of both kinds: keys and values of 2 bytes, for each of 2 sequences.
  // 2 sliding layers of 2 KV heads x 64, 1 global layer of 1 KV head x 128, whose keys keep a quarter of that.
  const std::int64_t rows = 256, sequences = 2, bytes = 2, keys_and_values = 2;
  EXPECT_EQ(document["kv_sliding"], 2 * 2 * 64 * rows * sequences * bytes * keys_and_values);
  EXPECT_EQ(document["kv_global"], 1 * (128 + 32) * rows * sequences * bytes);
  EXPECT_EQ(document["sequences_that_fit"], sequences);
  EXPECT_EQ(document["kv_per_sequence"].get<std::int64_t>() * sequences,
            document["kv_sliding"].get<std::int64_t>() + document["kv_global"].get<std::int64_t>());
  std::int64_t sum = 0;
  for (const char* part : {"weights", "weights_unpacked", "kv_sliding", "kv_global", "workspace", "activations"})
    sum += document[part].get<std::int64_t>();
  EXPECT_EQ(document["allocated"], sum);
  EXPECT_EQ(document["total"], sum + document["weights_mapped"].get<std::int64_t>());
}

// The form of the global layers' cache is in the numbers, in the document and in the text, with the reason against it.
TEST_F(PlanTest, SaysWhichFormACacheHas) {
  ConfigText text;
  const Json shared = plan(text).json();
  text.engine += "\nkv_form = \"full\"";
  const Json full = plan(text).json();
  EXPECT_EQ(shared["kv_global"].get<std::int64_t>() * 8, full["kv_global"].get<std::int64_t>() * 5);
  EXPECT_EQ(shared["kv_sliding"], full["kv_sliding"]);
  const auto global = [](const Json& document) {
    for (const Json& entry : document["kv_forms"])
      if (entry["group"] == "global") return entry;
    return Json();
  };
  EXPECT_EQ(global(shared)["form"], "shared");
  EXPECT_EQ(global(shared)["row_elements"], 160);
  EXPECT_EQ(global(shared)["full_row_elements"], 256);
  EXPECT_TRUE(global(shared)["refused"].empty());
  EXPECT_EQ(global(full)["form"], "full");
  EXPECT_EQ(global(full)["refused"][0]["plugin"], "engine.kv_form");
  const std::string file = write("full.toml", text.toml());
  EXPECT_THAT(run_facet({"plan", file}).out, HasSubstr("global layers: no shared form of the cache: engine.kv_form"));
  EXPECT_THAT(run_facet({"explain", file}).out, HasSubstr("no shared form: engine.kv_form: it is 'full'"));
  EXPECT_THAT(run_facet({"explain", write("auto.toml", ConfigText().toml())}).out, HasSubstr(", shared form"));
}

TEST_F(PlanTest, TheLimitIsExactAndTheAdviceHolds) {
  ConfigText text;
  text.engine = "threads = 2\nmax_sequences = 8\nmax_context = 2048\nmax_step_tokens = 16";
  const Json free = plan(text).json();
  const auto total = free["total"].get<std::int64_t>();
  const ProgramResult exact = plan(text, {"--memory-limit", std::to_string(total)});
  EXPECT_EQ(exact.exit_code, 0) << exact.text();
  EXPECT_EQ(exact.json()["within_limit"], true);

  const ProgramResult above = plan(text, {"--memory-limit", fmt::format("{}B", total - 1)});
  EXPECT_EQ(above.exit_code, 1) << above.text();
  const Json document = above.json();
  EXPECT_EQ(document["within_limit"], false);
  EXPECT_THAT(above.err, AllOf(HasSubstr(std::to_string(total)), HasSubstr(std::to_string(total - 1)),
                               HasSubstr("largest are"), HasSubstr("KV"), HasSubstr("max_sequences")));
  // One sequence less fits, and no more than that was asked to go.
  EXPECT_EQ(document["would_fit"]["max_sequences"], 7);
  text.engine = "threads = 2\nmax_sequences = 7\nmax_context = 2048\nmax_step_tokens = 16";
  EXPECT_EQ(plan(text, {"--memory-limit", std::to_string(total - 1)}).exit_code, 0);
  text.engine = fmt::format("threads = 2\nmax_sequences = 8\nmax_context = {}\nmax_step_tokens = 16",
                            document["would_fit"]["max_context"].get<std::int64_t>());
  EXPECT_EQ(plan(text, {"--memory-limit", std::to_string(total - 1)}).exit_code, 0);
}

TEST_F(PlanTest, ALimitBelowTheWeightsHasNoAdviceOfSizes) {
  const ProgramResult run = plan({}, {"--memory-limit", "1 KiB"});
  EXPECT_EQ(run.exit_code, 1) << run.text();
  EXPECT_TRUE(run.json()["would_fit"].empty());
  EXPECT_THAT(run.err, AllOf(HasSubstr((fs::canonical(folder_) / "config.toml").string() + ": the plan takes"),
                             HasSubstr("the weights alone take"), Not(HasSubstr("engine."))));
  // Above the weights it is the sizes that are too large.
  const Json free = plan({}).json();
  std::int64_t weights = 0;
  for (const char* part : {"weights", "weights_unpacked", "weights_mapped"}) weights += free[part].get<std::int64_t>();
  const ProgramResult above = plan({}, {"--memory-limit", std::to_string(weights)});
  EXPECT_EQ(above.exit_code, 1) << above.text();
  EXPECT_THAT(above.err, AllOf(Not(HasSubstr("the weights alone")), HasSubstr("engine.")));
}

// A ring holds window + chunk rows of a sequence, so a shorter chunk is an answer of its own.
TEST_F(PlanTest, AShorterChunkFitsARing) {
  ConfigText text;
  text.kv_cache = "[kv_cache.sliding]\nplugin = \"ring\"\n[kv_cache.global]\nplugin = \"static\"";
  const auto sized = [&](std::int64_t chunk) {
    text.engine = fmt::format(
        "threads = 2\nmax_sequences = 4\nmax_context = 4096\nmax_step_tokens = 2048\nprefill_chunk = {}", chunk);
    return text;
  };
  const auto limit = plan(sized(512)).json()["total"].get<std::int64_t>();
  const ProgramResult above = plan(sized(0), {"--memory-limit", std::to_string(limit)});
  EXPECT_EQ(above.exit_code, 1) << above.text();
  EXPECT_EQ(above.json()["would_fit"]["prefill_chunk"], 512) << above.text();
  EXPECT_THAT(above.err, HasSubstr("engine.prefill_chunk = 512 (now 2048)"));
}

TEST_F(PlanTest, UnitsAreAccepted) {
  for (const char* limit : {"10GiB", "10 GiB", "1.5GB", "900MB", "1TiB", "4000000000"})
    EXPECT_EQ(plan({}, {"--memory-limit", limit}).exit_code, 0) << limit;
}

TEST_F(PlanTest, TextNamesEveryCategory) {
  const ProgramResult run = run_facet({"plan", write("config.toml", ConfigText{}.toml())});
  ASSERT_EQ(run.exit_code, 0) << run.text();
  EXPECT_THAT(run.out,
              AllOf(HasSubstr("weights, packed"), HasSubstr("KV, sliding layers"), HasSubstr("KV, global layers"),
                    HasSubstr("workspace"), HasSubstr("activations"), HasSubstr("2 sequences of 256 tokens")));
}

}  // namespace
}  // namespace facet::cli_test
