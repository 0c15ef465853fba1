// `facet quantize` with calibration, from the command line to the files.
#include <gmock/gmock.h>

#include <fstream>

#include "config_text.h"
#include "facet/checkpoint/checkpoint.h"
#include "facet/checkpoint/linear_weight.h"
#include "run_program.h"

namespace facet::cli_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

std::string reference(const char* name) {
  return (fs::path(FACET_SOURCE_DIR) / "tests/data/reference" / name).string();
}

class QuantizeCommandTest : public FolderTest {
 protected:
  std::vector<std::string> arguments(const std::string& out, std::vector<std::string> more) const {
    std::vector<std::string> all = {"quantize", "--in", embedded_checkpoint().string(), "--out",
                                    (folder_ / out).string()};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  ProgramResult quantize(const std::string& out, std::vector<std::string> more) const {
    return run_facet(arguments(out, std::move(more)));
  }
  // GPTQ on few samples, so that it takes about a second.
  std::vector<std::string> gptq(std::vector<std::string> more = {}) const {
    std::vector<std::string> all = {"--method",  "gptq", "--calibration", reference("calibration_tokens.jsonl"),
                                    "--samples", "16",   "--length",      "256"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  // Lines of the evaluation file.
  std::string first_lines(int count) const {
    std::ifstream in(reference("eval_tokens.jsonl"));
    std::string text, line;
    for (int i = 0; i < count && std::getline(in, line); ++i) text += line + "\n";
    return write("few.jsonl", text);
  }
  static Json report(const fs::path& out) {
    std::ifstream in(out / "quantization_report.json");
    return Json::parse(in);
  }
  static std::string bytes(const fs::path& file) {
    std::ifstream in(file, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
};

TEST_F(QuantizeCommandTest, GptqBeatsRoundToNearestAndSaysSo) {
  const std::string few = first_lines(12);
  const ProgramResult nearest = quantize("rtn", {"--evaluate", few});
  ASSERT_EQ(nearest.exit_code, 0) << nearest.text();
  const ProgramResult run = quantize("gptq", gptq({"--evaluate", few, "--json"}));
  ASSERT_EQ(run.exit_code, 0) << run.text();
  // In a pipe each layer has a line, with the share of the work that is done.
  EXPECT_THAT(run.err,
              AllOf(HasSubstr("beside the mapped checkpoint"), HasSubstr("\nquantizing layer 1 of 3, 0 %\n"),
                    testing::ContainsRegex("\nquantizing layer 3 of 3, [1-9][0-9]? %, [0-9]+:[0-9][0-9] left\n"),
                    HasSubstr("\nquantize: writing "), Not(HasSubstr("\r"))));
  const Json made = report(folder_ / "gptq"), plain = report(folder_ / "rtn");
  EXPECT_EQ(run.json()["evaluation"], made["evaluation"]);
  Json document = run.json();
  document["evaluation"]["buckets"] = document["evaluation"]["buckets"].begin().value();  // their keys are lengths
  EXPECT_THAT(undocumented_keys(document), testing::IsEmpty());
  const double source = made["evaluation"]["source_nll"], nll = made["evaluation"]["nll"];
  EXPECT_EQ(source, plain["evaluation"]["source_nll"].get<double>());
  EXPECT_LT(nll - source, 0.6 * (plain["evaluation"]["nll"].get<double>() - source));
  EXPECT_LT(made["evaluation"]["mean_kl"].get<double>(), 0.6 * plain["evaluation"]["mean_kl"].get<double>());
  std::size_t modules = 0;
  for (const Json& layer : made["layers"]) {
    for (const Json& module : layer["modules"]) {
      ++modules;
      EXPECT_EQ(module["method"], "gptq");
      EXPECT_LT(module["relative_error"].get<double>(), module["nearest_relative_error"].get<double>())
          << module["name"];
      EXPECT_GT(module["predicted_loss"].get<double>(), 0.0) << module["name"];
      EXPECT_GE(module["dead_columns"].get<int>(), 0);
      EXPECT_GT(module["damping"].get<double>(), 0.0);
      EXPECT_GE(module["seconds"].get<double>(), 0.0);
    }
  }
  // Two sliding layers of seven matrices and a global one without v_proj.
  EXPECT_EQ(modules, 20u);

  // The written file through the pipeline, which knows nothing of the quantizer: the same NLL up to float rounding.
  ConfigText config;
  config.model = (folder_ / "gptq").string();
  config.linear = "[linear]\nplugin = \"reference\"";
  config.kv_cache = "[kv_cache]\nplugin = \"static\"\noptions = { storage = \"f32\" }";
  const ProgramResult eval = run_facet({"eval", write("c.toml", config.toml()), "--tokens", few, "--json"});
  ASSERT_EQ(eval.exit_code, 0) << eval.text();
  EXPECT_NEAR(eval.json()["mean_nll"].get<double>(), nll, 2e-5);
}

// The library's own values for this model (fp32), which the layer-by-layer forward must meet: one sequence of each
// length, from half a window to eight.
TEST_F(QuantizeCommandTest, SourceNllIsTheLibrarys) {
  std::ifstream in(reference("nll_reference.json")), tokens(reference("eval_tokens.jsonl"));
  const Json expected = Json::parse(in)["draft.fp32"]["sequence_nll"];
  std::map<std::string, double> by_length;
  std::string line, lines;
  for (std::size_t i = 0; std::getline(tokens, line); ++i) {
    const std::string length = std::to_string(Json::parse(line).size());
    if (by_length.emplace(length, expected[i].get<double>()).second) lines += line + "\n";
  }
  ASSERT_EQ(by_length.size(), 5u);
  const ProgramResult run = quantize("rtn", {"--evaluate", write("each.jsonl", lines), "--json"});
  ASSERT_EQ(run.exit_code, 0) << run.text();
  for (const auto& [length, value] : by_length)
    EXPECT_NEAR(run.json()["evaluation"]["buckets"][length]["source_nll"].get<double>(), value, 2e-5) << length;
}

TEST_F(QuantizeCommandTest, ThreadsDoNotChangeABit) {
  for (const char* threads : {"1", "2"}) {
    const ProgramResult run = quantize(threads, gptq({"--threads", threads, "--group", "32", "--asym", "--head", "int4",
                                                      "--refinements", "1", "--correction", "0.5"}));
    ASSERT_EQ(run.exit_code, 0) << run.text();
  }
  EXPECT_EQ(bytes(folder_ / "1" / "model.safetensors"), bytes(folder_ / "2" / "model.safetensors"));
}

// The embedding stays; the head is made from what it reads, in both layouts, and the pipeline gets the NLL that was
// promised.
TEST_F(QuantizeCommandTest, AnInt4HeadOfItsOwn) {
  const std::string few = first_lines(6);
  const ProgramResult tied = quantize("tied", gptq({"--evaluate", few, "--json"}));
  ASSERT_EQ(tied.exit_code, 0) << tied.text();
  for (const std::string format : {"compressed-tensors", "gptq"}) {
    const ProgramResult run =
        quantize(format, gptq({"--head", "int4", "--format", format, "--evaluate", few, "--json"}));
    ASSERT_EQ(run.exit_code, 0) << run.text();
    const Json made = run.json();
    EXPECT_EQ(made["head"]["name"], "lm_head");
    EXPECT_LT(made["head"]["relative_error"].get<double>(), made["head"]["nearest_relative_error"].get<double>());
    const Checkpoint source = Checkpoint::open(embedded_checkpoint()), written = Checkpoint::open(folder_ / format);
    EXPECT_TRUE(same_contents(*source.find("model.embed_tokens.weight"), *written.find("model.embed_tokens.weight")));
    EXPECT_NE(written.find(format == "gptq" ? "lm_head.qweight" : "lm_head.weight_packed"), nullptr);
    const double nll = made["evaluation"]["nll"];
    EXPECT_NE(nll, tied.json()["evaluation"]["nll"].get<double>());
    ConfigText config;
    config.model = (folder_ / format).string();
    config.linear = "[linear]\nplugin = \"reference\"";
    config.kv_cache = "[kv_cache]\nplugin = \"static\"\noptions = { storage = \"f32\" }";
    const ProgramResult eval = run_facet({"eval", write("c.toml", config.toml()), "--tokens", few, "--json"});
    ASSERT_EQ(eval.exit_code, 0) << eval.text();
    EXPECT_NEAR(eval.json()["mean_nll"].get<double>(), nll, 2e-5) << format;
  }
}

TEST_F(QuantizeCommandTest, ExcludedModulesStayAndOthersKnowIt) {
  const ProgramResult run = quantize("some", gptq({"--exclude", "*.down_proj", "--exclude", "*.layers.1.*"}));
  ASSERT_EQ(run.exit_code, 0) << run.text();
  const Checkpoint source = Checkpoint::open(embedded_checkpoint()), written = Checkpoint::open(folder_ / "some");
  for (const char* name : {"model.layers.0.mlp.down_proj.weight", "model.layers.1.self_attn.q_proj.weight"}) {
    ASSERT_NE(written.find(name), nullptr) << name;
    EXPECT_TRUE(same_contents(*source.find(name), *written.find(name))) << name;
  }
  EXPECT_NE(written.find("model.layers.0.mlp.up_proj.weight_packed"), nullptr);
}

TEST_F(QuantizeCommandTest, CalibratesOnText) {
  std::string text;
  for (int i = 0; i < 60; ++i) text += "To install package number " + std::to_string(i) + ", run the setup script.\n";
  const ProgramResult run =
      quantize("text", {"--method", "gptq", "--calibration", write("sample.txt", text), "--length", "64", "--json"});
  ASSERT_EQ(run.exit_code, 0) << run.text();
  EXPECT_GT(run.json()["calibration_tokens"].get<int>(), 300);
}

TEST_F(QuantizeCommandTest, StatesItsMemory) {
  const ProgramResult plan = quantize("plan", gptq({"--dry-run", "--json"}));
  ASSERT_EQ(plan.exit_code, 0) << plan.text();
  EXPECT_FALSE(fs::exists(folder_ / "plan"));
  EXPECT_TRUE(fs::is_empty(folder_));
  const ProgramResult run = quantize("made", gptq());
  ASSERT_EQ(run.exit_code, 0) << run.text();
  // The dry run holds the program itself; pages of the mapped file come on top.
  const auto mapped = static_cast<std::int64_t>(fs::file_size(embedded_checkpoint() / "model.safetensors"));
  EXPECT_LE(run.peak_rss_bytes, plan.peak_rss_bytes + plan.json()["memory"]["total"].get<std::int64_t>() + mapped);
}

TEST_F(QuantizeCommandTest, OnTheCpuNothingIsAskedOfAGpu) {
  const ProgramResult run = quantize("nothing", gptq({"--dry-run", "--json", "--device", "cpu"}));
  ASSERT_EQ(run.exit_code, 0) << run.text();
  EXPECT_EQ(run.json()["device"], "cpu");
  EXPECT_EQ(run.json()["forward"], "cpu");
  EXPECT_EQ(run.json()["memory"]["device"], 0);
  EXPECT_GT(run.json()["memory"]["activations"].get<std::int64_t>(), 0);
  EXPECT_THAT(run.err, Not(HasSubstr("GPU")));
}

// A library that cannot be loaded stands for a machine without a GPU.
TEST_F(QuantizeCommandTest, WithoutAGpuAutoTakesTheCpuAndCudaSaysWhy) {
  const std::string broken = write("broken.so", "no library");
  const std::vector<std::pair<std::string, std::string>> environment = {{"FACET_QUANTIZER_CUDA_LIBRARY", broken}};
  const ProgramResult automatic =
      run_facet(arguments("nothing", gptq({"--dry-run", "--json", "--device", "auto"})), {}, environment);
  ASSERT_EQ(automatic.exit_code, 0) << automatic.text();
  EXPECT_EQ(automatic.json()["forward"], "cpu");
  const ProgramResult cuda = run_facet(arguments("nothing", gptq({"--dry-run", "--device", "cuda"})), {}, environment);
  EXPECT_NE(cuda.exit_code, 0);
  EXPECT_THAT(cuda.err,
              AllOf(HasSubstr("--device cuda is not available"), HasSubstr("broken.so"), HasSubstr("--device cpu")));
}

TEST_F(QuantizeCommandTest, RefusesWhatDoesNotFitTogether) {
  const auto refused = [&](std::vector<std::string> more, int code, std::vector<std::string> words) {
    const ProgramResult run = quantize("x", std::move(more));
    EXPECT_EQ(run.exit_code, code) << run.text();
    for (const std::string& word : words) EXPECT_THAT(run.err, HasSubstr(word));
    EXPECT_FALSE(fs::exists(folder_ / "x"));
    EXPECT_FALSE(fs::exists(folder_ / "x.work"));
  };
  refused({"--method", "gptq"}, 2, {"--calibration"});
  refused({"--scales", "hessian"}, 2, {"--calibration"});
  refused({"--calibration", "a.jsonl"}, 2, {"--calibration", "rtn"});
  refused({"--method", "gptq", "--calibration", "absent.jsonl"}, 2, {"absent.jsonl"});
  refused({"--method", "gptq", "--calibration", write("w.jsonl", "[2,5]\n[2,8192]\n")}, 2,
          {"sequence 2", "8192", "vocabulary"});
  refused({"--method", "gptq", "--calibration", write("e.jsonl", "[2,5]\n[]\n")}, 2, {"sequence 2", "empty"});
  refused(gptq({"--exclude", "*.nothing"}), 3, {"*.nothing"});
  refused(gptq({"--exclude", "*"}), 3, {"no module to quantize"});
  refused({"--refinements", "5"}, 2, {"--refinements", "rtn"});
  refused({"--samples", "5"}, 2, {"--samples", "rtn"});
  refused(gptq({"--damping", "nan"}), 2, {"--damping", "nan"});
  refused(gptq({"--correction", "nan"}), 2, {"--correction", "nan"});
  refused({"--device", "cuda"}, 2, {"--device cuda", "rtn"});
  refused(gptq({"--evaluate", write("v.jsonl", "[2,5]\n[2,8192]\n")}), 2, {"v.jsonl", "sequence 2", "8192"});
  refused({"--method", "gptq", "--calibration", folder_.string()}, 2, {"is a folder"});
  refused(gptq({"--evaluate", folder_.string()}), 2, {"is a folder"});
}

TEST_F(QuantizeCommandTest, NanInCalibrationNamesSampleAndModule) {
  const fs::path copy = folder_ / "bad";
  fs::copy(embedded_checkpoint(), copy);
  fs::permissions(copy / "model.safetensors", fs::perms::owner_write, fs::perm_options::add);
  std::int64_t offset = 0;
  {
    const SafetensorsFile file = SafetensorsFile::open(copy / "model.safetensors");
    const Tensor* table = file.find("model.embed_tokens.weight");
    ASSERT_NE(table, nullptr);
    offset = (table->data - file.image()) + (77 * table->shape[1] + 3) * 2;
  }
  std::fstream patch(copy / "model.safetensors", std::ios::in | std::ios::out | std::ios::binary);
  patch.seekp(offset);
  const std::uint16_t infinity = 0x7f80;
  patch.write(reinterpret_cast<const char*>(&infinity), sizeof infinity);
  patch.close();
  const std::string samples = write("s.jsonl", "[2,5,6]\n[2,9,8,77]\n[2,5]\n");
  const ProgramResult run = run_facet({"quantize", "--in", copy.string(), "--out", (folder_ / "x").string(), "--method",
                                       "gptq", "--calibration", samples});
  EXPECT_EQ(run.exit_code, 1) << run.text();
  EXPECT_THAT(run.err, AllOf(HasSubstr("model.layers.0.self_attn.q_proj"), HasSubstr("NaN or infinite"),
                             HasSubstr("token 3 of sample 2"), HasSubstr("s.jsonl")));
  EXPECT_FALSE(fs::exists(folder_ / "x.work"));
}

TEST_F(QuantizeCommandTest, AnotherRunsWorkIsNotTouched) {
  // What an interrupted run leaves: job.json and finished parts.
  const ProgramResult first = quantize("x", gptq({"--dry-run"}));
  ASSERT_EQ(first.exit_code, 0) << first.text();
  write("x.work/job.json", "{\"method\":\"gptq\",\"group\":64}");
  write("x.work/layer-00000.safetensors", "part");
  const ProgramResult fresh = quantize("x", gptq());
  EXPECT_EQ(fresh.exit_code, 1) << fresh.text();
  EXPECT_THAT(fresh.err, AllOf(HasSubstr("x.work"), HasSubstr("--resume")));
  const ProgramResult other = quantize("x", gptq({"--resume"}));
  EXPECT_EQ(other.exit_code, 2) << other.text();
  EXPECT_THAT(other.err, AllOf(HasSubstr("group"), HasSubstr("64"), HasSubstr("128")));
  const ProgramResult plan = quantize("x", gptq({"--resume", "--dry-run"}));
  EXPECT_EQ(plan.exit_code, 2) << plan.text();
  // Another method with the same name, with and without --resume.
  for (const std::vector<std::string>& more : {std::vector<std::string>{}, {"--resume"}}) {
    const ProgramResult nearest = quantize("x", more);
    EXPECT_EQ(nearest.exit_code, 2) << nearest.text();
    EXPECT_THAT(nearest.err, AllOf(HasSubstr("x.work"), HasSubstr("gptq"), HasSubstr("--resume")));
  }
  // A result that is not the interrupted run's does not end it.
  fs::rename(folder_ / "x.work", folder_ / "kept");
  ASSERT_EQ(quantize("x", {}).exit_code, 0);
  fs::rename(folder_ / "kept", folder_ / "x.work");
  const ProgramResult taken = quantize("x/", gptq({"--resume"}));
  EXPECT_EQ(taken.exit_code, 1) << taken.text();
  EXPECT_THAT(taken.err, HasSubstr("exists already"));
  EXPECT_TRUE(fs::exists(folder_ / "x.work" / "layer-00000.safetensors"));
}

// The run was stopped when all but the deletion of its work was done.
TEST_F(QuantizeCommandTest, AFinishedRunOnlyTidiesUp) {
  ASSERT_EQ(quantize("x", gptq()).exit_code, 0);
  write("x.work/job.json", report(folder_ / "x")["job"].dump());
  const ProgramResult other = quantize("x", gptq({"--resume", "--group", "64"}));
  EXPECT_EQ(other.exit_code, 2) << other.text();
  EXPECT_TRUE(fs::exists(folder_ / "x.work"));
  const ProgramResult same = quantize("x", gptq({"--resume", "--json"}));
  EXPECT_EQ(same.exit_code, 0) << same.text();
  EXPECT_EQ(same.json(), report(folder_ / "x"));
  EXPECT_FALSE(fs::exists(folder_ / "x.work"));
}

TEST_F(QuantizeCommandTest, ResumingNothingIsAMistake) {
  for (const std::vector<std::string>& method : {std::vector<std::string>{"--resume"}, gptq({"--resume"})}) {
    const ProgramResult run = quantize("typo", method);
    EXPECT_EQ(run.exit_code, 2) << run.text();
    EXPECT_THAT(run.err, AllOf(HasSubstr("--resume: there is nothing to go on with"), HasSubstr("typo.work")));
    EXPECT_TRUE(fs::is_empty(folder_));
  }
}

TEST_F(QuantizeCommandTest, FoldersOfOthersAreNotDeleted) {
  write("x.work/thesis.txt", "mine");
  const ProgramResult work = quantize("x", gptq());
  EXPECT_EQ(work.exit_code, 1) << work.text();
  EXPECT_THAT(work.err, AllOf(HasSubstr("x.work"), HasSubstr("thesis.txt")));
  EXPECT_EQ(bytes(folder_ / "x.work" / "thesis.txt"), "mine");
  write("z.work", "mine");
  const ProgramResult file = quantize("z", gptq());
  EXPECT_EQ(file.exit_code, 1) << file.text();
  EXPECT_THAT(file.err, AllOf(HasSubstr("z.work"), HasSubstr("is no folder")));
  write("y.partial/thesis.txt", "mine");
  const ProgramResult partial = quantize("y", gptq({"--resume"}));
  EXPECT_EQ(partial.exit_code, 1) << partial.text();
  EXPECT_THAT(partial.err, HasSubstr("y.partial"));
  EXPECT_EQ(bytes(folder_ / "y.partial" / "thesis.txt"), "mine");
}

}  // namespace
}  // namespace facet::cli_test
