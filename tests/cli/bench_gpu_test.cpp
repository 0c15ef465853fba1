// facet bench and facet plan on a GPU, with the embedded INT4 model.
#include <gmock/gmock.h>

#include <cstdlib>
#include <fstream>

#include "config_text.h"
#include "run_program.h"

namespace facet::cli_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class BenchOnGpu : public testing::Test {
 protected:
  void SetUp() override {
    const ProgramResult run = run_facet({"plan", config_, "--json"});
    ASSERT_EQ(run.exit_code, 0) << run.text();
    plan_ = run.json();
    if (plan_["device_absent"].is_null()) return;
    if (std::getenv("FACET_REQUIRE_GPU") != nullptr) FAIL() << plan_["device_absent"];
    GTEST_SKIP() << plan_["device_absent"];
  }
  ProgramResult bench(std::vector<std::string> more) const {
    std::vector<std::string> arguments = {"bench",      config_, "--prompt-tokens", "40", "--batch", "1,3",
                                          "--generate", "24",    "--repeat",        "2"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run_facet(arguments);
  }

  const std::string config_ = (fs::path(FACET_SOURCE_DIR) / "configs/cuda/docs-22m.toml").string();
  Json plan_;
};

// What a plan says without the GPU, the GPU says too.
TEST_F(BenchOnGpu, PlansWithoutTheGpuAreThoseOfTheGpu) {
  for (const char* name : {"configs/cuda/docs-22m.toml", "configs/cuda/gemma4-12b-synthetic.toml",
                           "configs/lab/05-ring.toml", "configs/lab/06-final.toml"}) {
    const std::string config = (fs::path(FACET_SOURCE_DIR) / name).string();
    const ProgramResult hidden = run_facet({"plan", config, "--json"}, {}, {{"CUDA_VISIBLE_DEVICES", ""}});
    ASSERT_EQ(hidden.exit_code, 0) << hidden.text();
    const Json absent = hidden.json(), here = run_facet({"plan", config, "--json"}).json();
    ASSERT_TRUE(here["device_absent"].is_null());
    ASSERT_TRUE(absent["device_absent"].is_string());
    for (const char* part : {"weights", "weights_unpacked", "weights_mapped", "kv_sliding", "kv_global", "workspace",
                             "activations", "total", "sequences_that_fit"}) {
      EXPECT_LE(absent[part].get<std::int64_t>(), here[part].get<std::int64_t>()) << name << " " << part;
      // With something left out it is a lower bound.
      if (absent["left_out"].empty()) {
        EXPECT_EQ(absent[part], here[part]) << name << " " << part;
      }
    }
  }
}

TEST_F(BenchOnGpu, RowThresholdsAreMeasuredAndUsed) {
  const fs::path folder = fs::path(testing::TempDir()) / "facet_tune_on_gpu";
  fs::create_directories(folder);
  const std::string rules = (folder / "tuned.toml").string(), file = (folder / "config.toml").string();
  const ProgramResult run = run_facet({"bench", config_, "--tune", rules, "--repeat", "3", "--json"});
  ASSERT_EQ(run.exit_code, 0) << run.text();
  for (const Json& module : run.json()["modules"]) {
    for (const Json& entry : module["rows"]) {
      bool stream = false;
      for (const Json& plugin : entry["plugins"]) {
        EXPECT_GT(plugin["us"]["min"].get<double>(), 0);
        stream = stream || plugin["plugin"] == "w4a16_stream";
      }
      EXPECT_EQ(stream, entry["rows"] <= 4 && module["layers"] != "lm_head") << module["layers"] << entry.dump();
    }
  }
  std::string text = run_facet({"explain", config_, "--resolved"}).out;
  text.insert(text.find("[linear]\n") + 9, "tuning = \"tuned.toml\"\n");
  std::ofstream(file) << text;
  const ProgramResult tuned = run_facet({"run", file, "--prompt", "def main():", "--max-tokens", "8"});
  EXPECT_EQ(tuned.exit_code, 0) << tuned.text();
  EXPECT_THAT(run_facet({"explain", file}).out, HasSubstr("rule linear.tuning tuned.toml:"));
  fs::remove_all(folder);
}

TEST_F(BenchOnGpu, ReadRateAndGapsBetweenStepsAreMeasured) {
  const ProgramResult run = bench({"--json"});
  ASSERT_EQ(run.exit_code, 0) << run.text();
  const Json document = run.json();
  const Json& limit = document["read_bandwidth"];
  ASSERT_TRUE(limit.is_object()) << run.err;
  EXPECT_TRUE(limit["threads"].is_null());
  EXPECT_GT(limit["gb_per_s"]["min"].get<double>(), 0);
  ASSERT_EQ(document["runs"].size(), 2u);
  for (const Json& shape : document["runs"]) {
    const Json& decode = shape["decode"];
    EXPECT_GT(decode["share_of_read_bandwidth"].get<double>(), 0);
    const Json& gap = decode["gap_us"];
    ASSERT_TRUE(gap.is_object()) << decode.dump();
    EXPECT_GT(gap["min"].get<double>(), 0);
    EXPECT_LE(gap["min"].get<double>(), gap["median"].get<double>());
    EXPECT_LE(gap["median"].get<double>(), gap["max"].get<double>());
  }
  const ProgramResult text = bench({});
  ASSERT_EQ(text.exit_code, 0) << text.text();
  EXPECT_THAT(text.out, AllOf(HasSubstr("memory read bandwidth, device"),
                              HasSubstr("us between steps without a kernel"), HasSubstr("% of the read bandwidth")));
}

// Every kernel of a step belongs to a part, and what the parts move is at least the weights.
TEST_F(BenchOnGpu, TheProfileHasParts) {
  const ProgramResult run = bench({"--profile", "--json"});
  ASSERT_EQ(run.exit_code, 0) << run.text();
  const Json document = run.json();
  EXPECT_GT(document["bf16_tflop_per_s"]["min"].get<double>(), 0);
  for (const Json& shape : document["runs"]) {
    for (const char* phase : {"prefill", "decode"}) {
      SCOPED_TRACE(phase);
      const Json& profile = shape["profile"][phase];
      ASSERT_TRUE(profile["parts"].is_array()) << profile.dump(2);
      double parts = 0, kernels = 0, bytes = 0, other = 0;
      std::size_t known = 0;
      for (const Json& row : profile["parts"]) {
        parts += row["us_per_step"].get<double>();
        if (!row.contains("mb")) {
          other = row["us_per_step"].get<double>();
          continue;
        }
        ++known;
        bytes += 1e6 * row["mb"].get<double>();
        EXPECT_GT(row["share_of_floor"].get<double>(), 0) << row.dump();
      }
      for (const Json& row : profile["kernels"]) kernels += row["us_per_step"].get<double>();
      EXPECT_NEAR(parts, kernels, 1e-6 * kernels);
      EXPECT_EQ(known, 10u) << "all parts of a model with both kinds of layers";
      EXPECT_LT(other, 0.25 * kernels) << "copies between steps, and choices that were not recorded";
      EXPECT_GE(bytes, shape["decode"]["weight_bytes_per_step"].get<double>());
    }
  }
  const ProgramResult text = bench({"--profile"});
  ASSERT_EQ(text.exit_code, 0) << text.text();
  EXPECT_THAT(text.out, AllOf(HasSubstr("floor us"), HasSubstr("attention, global layers"), HasSubstr("TFLOP/s")));
}

// What a limit counts is what lies on the device.
TEST_F(BenchOnGpu, TheLimitIsExact) {
  std::int64_t sum = 0;
  for (const char* part : {"weights", "kv_sliding", "kv_global", "workspace", "activations"})
    sum += plan_[part].get<std::int64_t>();
  EXPECT_EQ(plan_["total"], sum);
  EXPECT_EQ(bench({"--memory-limit", std::to_string(sum)}).exit_code, 0);
  const ProgramResult above = bench({"--memory-limit", std::to_string(sum - 1)});
  EXPECT_EQ(above.exit_code, 1) << above.text();
  EXPECT_THAT(above.err, AllOf(HasSubstr("of the GPU's memory"), HasSubstr(std::to_string(sum)),
                               HasSubstr("engine.max_sequences = 7")));
}

}  // namespace
}  // namespace facet::cli_test
