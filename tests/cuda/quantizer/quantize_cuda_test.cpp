// `facet quantize` on a GPU against the CPU's, from the command line to the files.
#include <gmock/gmock.h>

#include <cstdlib>
#include <fstream>

#include "config_text.h"
#include "facet/backend/cuda_backend.h"
#include "facet/base/error.h"
#include "run_program.h"

namespace facet::cli_test {
namespace {

using testing::HasSubstr;

class QuantizeCudaTest : public FolderTest {
 protected:
  void SetUp() override {
    FolderTest::SetUp();
    try {
      make_cuda_backend();
    } catch (const Error& error) {
      if (std::getenv("FACET_REQUIRE_GPU") != nullptr) FAIL() << error.what();
      GTEST_SKIP() << error.what();
    }
  }
  std::string out(const char* name) const { return (folder_ / name).string(); }
  ProgramResult quantize(const char* name, const char* device, std::vector<std::string> more = {},
                         const char* samples = "48") const {
    const std::string data = (fs::path(FACET_SOURCE_DIR) / "tests/data/reference/").string();
    std::vector<std::string> all = {
        "quantize", "--in",          embedded_checkpoint().string(),    "--out",     out(name), "--method",
        "gptq",     "--calibration", data + "calibration_tokens.jsonl", "--samples", samples};
    for (const char* value : {"--length", "300", "--device", device}) all.emplace_back(value);
    all.insert(all.end(), more.begin(), more.end());
    return run_facet(all);
  }
  // The first lines of the evaluation file.
  std::string evaluation() const {
    std::ifstream in(fs::path(FACET_SOURCE_DIR) / "tests/data/reference/eval_tokens.jsonl");
    std::string text, line;
    for (int i = 0; i < 24 && std::getline(in, line); ++i) text += line + "\n";
    return write("few.jsonl", text);
  }
  static Json report(const std::string& folder) {
    std::ifstream in(fs::path(folder) / "quantization_report.json");
    return Json::parse(in);
  }
  static std::string bytes(const std::string& folder) {
    std::ifstream in(fs::path(folder) / "model.safetensors", std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
};

TEST_F(QuantizeCudaTest, TheForwardRunsThereAndLosesNoMore) {
  const std::string few = evaluation();
  for (const char* head : {"bf16", "int4"}) {
    SCOPED_TRACE(head);
    const std::string cpu = std::string("cpu-") + head, cuda = std::string("cuda-") + head;
    const ProgramResult there = quantize(cuda.c_str(), "cuda", {"--evaluate", few, "--head", head});
    ASSERT_EQ(there.exit_code, 0) << there.text();
    const ProgramResult here = quantize(cpu.c_str(), "cpu", {"--evaluate", few, "--head", head});
    ASSERT_EQ(here.exit_code, 0) << here.text();
    const Json a = report(out(cuda.c_str())), b = report(out(cpu.c_str()));
    EXPECT_EQ(a["forward"], "cuda");
    EXPECT_EQ(b["forward"], "cpu");
    EXPECT_GT(a["memory"]["device"].get<std::int64_t>(), 0);
    const double source = b["evaluation"]["source_nll"], nll = b["evaluation"]["nll"];
    EXPECT_EQ(a["evaluation"]["source_nll"].get<double>(), source);
    // Rounding decides on which side a value near a tie falls. Over these predictions NLL then scatters by about 0.005,
    // KL by a few percent; inputs that are wrong, or a forward that is, cost many times that.
    EXPECT_NEAR(a["evaluation"]["nll"].get<double>(), nll, 0.01);
    EXPECT_LT(a["evaluation"]["nll"].get<double>(), source + 2 * (nll - source));
    const double kl = b["evaluation"]["mean_kl"];
    EXPECT_NEAR(a["evaluation"]["mean_kl"].get<double>(), kl, 0.1 * kl);
  }
}

TEST_F(QuantizeCudaTest, TwoRunsAreOneFile) {
  const std::vector<std::string> options = {"--asym", "--group", "32", "--exclude", "*layers.1.mlp.up_proj"};
  ASSERT_EQ(quantize("first", "cuda", options).exit_code, 0);
  ASSERT_EQ(quantize("second", "auto", options).exit_code, 0);
  EXPECT_EQ(bytes(out("first")), bytes(out("second")));
}

TEST_F(QuantizeCudaTest, MoreSamplesNeedMoreOfItsMemory) {
  const auto stated = [&](const char* samples) {
    const ProgramResult run = quantize("nothing", "cuda", {"--dry-run", "--json"}, samples);
    EXPECT_EQ(run.exit_code, 0) << run.text();
    EXPECT_THAT(run.err, HasSubstr("of the GPU's memory"));
    return run.json()["memory"]["device"].get<std::int64_t>();
  };
  // The states of 48 samples of 300 tokens in two models: hidden states in float, the widest input in bf16.
  EXPECT_GT(stated("48") - stated("16"), 2 * 32 * 250 * (4 * 256));
}

}  // namespace
}  // namespace facet::cli_test
