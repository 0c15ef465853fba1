// The 22.5 M model, quantized as users would: minutes, so it is labelled slow.
#include <gmock/gmock.h>

#include "config_text.h"
#include "run_program.h"

namespace facet::cli_test {
namespace {

std::string reference(const char* name) {
  return (fs::path(FACET_SOURCE_DIR) / "tests/data/reference" / name).string();
}

class QuantizeGoldenTest : public FolderTest {
 protected:
  // NLL above the source's on the evaluation file, which no choice was made on; every length stays below 0.1.
  double loss(const std::string& out, std::vector<std::string> more) const {
    std::vector<std::string> arguments = {"quantize",
                                          "--in",
                                          reference_checkpoint("gemma4-docs-22m").string(),
                                          "--out",
                                          (folder_ / out).string(),
                                          "--evaluate",
                                          reference("eval_tokens.jsonl"),
                                          "--json"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const ProgramResult run = run_facet(arguments);
    EXPECT_EQ(run.exit_code, 0) << run.text();
    if (run.exit_code != 0) return 1e9;
    const Json made = run.json()["evaluation"];
    EXPECT_NEAR(made["source_nll"].get<double>(), 2.229446, 2e-6);
    for (const auto& [length, bucket] : made["buckets"].items())
      EXPECT_LT(bucket["nll"].get<double>() - bucket["source_nll"].get<double>(), 0.1) << out << " length " << length;
    return made["nll"].get<double>() - made["source_nll"].get<double>();
  }
  static std::vector<std::string> gptq(std::vector<std::string> more) {
    std::vector<std::string> all = {"--method", "gptq", "--calibration", reference("calibration_tokens.jsonl")};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
};

TEST_F(QuantizeGoldenTest, Losses) {
  if (reference_checkpoint("gemma4-docs-22m").empty())
    GTEST_SKIP()
        << "no checkpoint gemma4-docs-22m: set FACET_REFERENCE_DIR to the folder that holds models/gemma4-docs-22m";
  EXPECT_LE(loss("max", gptq({"--order", "natural", "--scales", "max", "--refinements", "0"})), 0.052);
  const double searched = loss("search", gptq({"--order", "natural", "--scales", "search", "--refinements", "0"}));
  EXPECT_LE(searched, 0.031);
  EXPECT_LT(loss("default", gptq({})), searched);
  EXPECT_LE(loss("g32", gptq({"--group", "32", "--asym"})), 0.028);
  const double body = loss("rtn", {"--scales", "search"});
  EXPECT_LE(loss("int8", {"--scales", "search", "--head", "int8"}) - body, 0.001);
}

}  // namespace
}  // namespace facet::cli_test
