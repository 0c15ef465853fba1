// facet eval --against: the program's numbers against logits read directly and summed by the definition.
#include <gmock/gmock.h>

#include <cmath>

#include "eval_against_fixture.h"
#include "gemma4/pipeline.h"
#include "quantize_weight.h"
#include "tiny_checkpoint.h"

namespace facet::cli_test {
namespace {

using testing::HasSubstr;

struct Expected {
  double kl = 0, largest = 0, reference_nll = 0, nll = 0;
  std::int64_t same_top = 0, predictions = 0;
};

// All logits of a sequence, straight from a model: [tokens, vocabulary].
std::vector<float> all_logits(const std::string& file, const std::vector<std::int32_t>& tokens) {
  gemma4::PipelineOptions options;
  options.plugin_dirs = {fs::path(FACET_BINARY_DIR) / "lib/facet/plugins"};
  options.quantize = cli::quantize_weight;
  gemma4::Pipeline pipeline(load_config(file), options);
  pipeline.load();
  const auto engine = pipeline.make_engine();
  Request request;
  request.prompt = tokens;
  request.max_tokens = 0;
  request.score = true;
  engine->submit(std::move(request));
  std::vector<float> logits;
  const auto vocabulary = static_cast<std::size_t>(pipeline.model().vocabulary());
  for (std::int64_t before = 0; engine->step(); before = engine->metrics().prefill_tokens) {
    const auto count = static_cast<std::size_t>(engine->metrics().prefill_tokens - before);
    std::vector<std::int32_t> rows(count);
    for (std::size_t i = 0; i < count; ++i) rows[i] = static_cast<std::int32_t>(i);
    const float* values = pipeline.model().logits(rows);
    logits.insert(logits.end(), values, values + count * vocabulary);
  }
  EXPECT_EQ(logits.size(), tokens.size() * vocabulary);
  return logits;
}

void add_by_definition(const std::vector<float>& reference, const std::vector<float>& variant,
                       const std::vector<std::int32_t>& tokens, Expected& expected) {
  const std::size_t vocabulary = reference.size() / tokens.size();
  const auto log_sum = [&](const float* row) {
    double sum = 0;
    for (std::size_t i = 0; i < vocabulary; ++i) sum += std::exp(static_cast<double>(row[i]));  // capped at 30
    return std::log(sum);
  };
  for (std::size_t position = 0; position + 1 < tokens.size(); ++position) {
    const float* r = reference.data() + position * vocabulary;
    const float* v = variant.data() + position * vocabulary;
    const double log_r = log_sum(r), log_v = log_sum(v);
    for (std::size_t i = 0; i < vocabulary; ++i) {
      const double p = static_cast<double>(r[i]) - log_r, q = static_cast<double>(v[i]) - log_v;
      expected.kl += std::exp(p) * (p - q);
      expected.largest = std::max(expected.largest, std::abs(static_cast<double>(r[i]) - static_cast<double>(v[i])));
    }
    const auto next = static_cast<std::size_t>(tokens[position + 1]);
    expected.reference_nll += log_r - static_cast<double>(r[next]);
    expected.nll += log_v - static_cast<double>(v[next]);
    expected.same_top += std::max_element(r, r + vocabulary) - r == std::max_element(v, v + vocabulary) - v ? 1 : 0;
    ++expected.predictions;
  }
}

TEST_F(EvalAgainstTest, AModelAgainstItselfIsExactlyEqual) {
  const Json alone = eval(plain_, "");
  const Json both = eval(plain_, plain_);
  EXPECT_FALSE(alone.contains("against"));
  const Json& against = both["against"];
  EXPECT_EQ(against["mean_kl"], 0.0);
  EXPECT_EQ(against["top1_agreement"], 1.0);
  EXPECT_EQ(against["max_logit_difference"], 0.0);
  EXPECT_EQ(against["reference_nll"], both["mean_nll"]);
  EXPECT_EQ(against["buckets"].size(), 3u);
  for (const auto& [length, bucket] : against["buckets"].items()) {
    EXPECT_EQ(bucket["mean_kl"], 0.0) << length;
    EXPECT_EQ(bucket["top1_agreement"], 1.0) << length;
  }
  EXPECT_EQ(both["predictions"], 23 + 39 + 23 + 149);
  // What was there before is still there; sequences run one by one, which may change the last bits.
  for (const auto& [key, value] : alone.items()) EXPECT_TRUE(both.contains(key)) << key;
  EXPECT_NEAR(both["mean_nll"].get<double>(), alone["mean_nll"].get<double>(), 1e-5);
  EXPECT_EQ(against["record"]["config_file"], fs::path(plain_).string());
}

TEST_F(EvalAgainstTest, AgreesWithADirectComputation) {
  const std::string head = int8_head();
  const Json result = eval(head, plain_);
  Expected total;
  std::map<std::string, Expected> buckets;
  const Sequences sequences = random_sequences();
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    SCOPED_TRACE(i);
    const std::vector<float> reference = all_logits(plain_, sequences[i]), variant = all_logits(head, sequences[i]);
    Expected own;
    add_by_definition(reference, variant, sequences[i], own);
    for (Expected* sum : {&total, &buckets[std::to_string(sequences[i].size())]})
      add_by_definition(reference, variant, sequences[i], *sum);
    EXPECT_NEAR(result["sequences"][i]["mean_kl"].get<double>(), own.kl / static_cast<double>(own.predictions), 1e-12);
  }
  const auto compare = [](const Json& found, const Expected& expected) {
    const auto count = static_cast<double>(expected.predictions);
    // 8,192 terms of double rounding at logits below 30.
    EXPECT_NEAR(found["mean_kl"].get<double>(), expected.kl / count, 1e-12);
    EXPECT_GT(found["mean_kl"].get<double>(), 0.0);
    EXPECT_LT(found["mean_kl"].get<double>(), 0.01);
    EXPECT_EQ(found["top1_agreement"].get<double>(), static_cast<double>(expected.same_top) / count);
    EXPECT_EQ(found["max_logit_difference"].get<double>(), expected.largest);
    EXPECT_NEAR(found["reference_nll"].get<double>(), expected.reference_nll / count, 5e-6);  // see log_probability
  };
  compare(result["against"], total);
  for (const auto& [length, expected] : buckets) compare(result["against"]["buckets"][length], expected);
  EXPECT_NEAR(result["mean_nll"].get<double>(), total.nll / static_cast<double>(total.predictions), 5e-6);
}

TEST_F(EvalAgainstTest, StepsNeedNotMatchAndDecodeAgreesWithPrefill) {
  ConfigText narrow;
  narrow.engine = "threads = 2\nmax_sequences = 2\nmax_context = 256\nmax_step_tokens = 17";
  const std::string other = config("narrow", narrow, "checkpoint");
  for (const Json& result : {eval(plain_, other), eval(other, plain_), eval(plain_, plain_, {"--path", "decode"})}) {
    EXPECT_LT(result["against"]["mean_kl"].get<double>(), 1e-6);
    EXPECT_EQ(result["predictions"], 234);
    EXPECT_LT(result["against"]["max_logit_difference"].get<double>(), 1e-2);
  }
  const std::string head = int8_head();
  const double prefill = eval(head, plain_)["against"]["mean_kl"].get<double>();
  const double decode = eval(head, plain_, {"--path", "decode"})["against"]["mean_kl"].get<double>();
  EXPECT_NEAR(decode, prefill, 0.05 * prefill);
}

TEST_F(EvalAgainstTest, RefusalsNameBothValues) {
  const auto refused = [&](const std::vector<std::string>& arguments, int exit_code) {
    const ProgramResult run = run_facet(arguments);
    EXPECT_EQ(run.exit_code, exit_code) << run.text();
    EXPECT_EQ(run.out, "");
    return run.err;
  };
  facet::test::TinyCheckpoint tiny(5);
  tiny.write(folder_ / "tiny");
  ConfigText text;
  text.model = (folder_ / "tiny").string();
  text.engine = "threads = 1\nmax_sequences = 1\nmax_context = 64\nmax_step_tokens = 32";
  const std::string other = config("tiny", text, "checkpoint");
  const std::string vocabularies = refused({"eval", plain_, "--tokens", tokens_, "--against", other}, 2);
  for (const char* word : {"--against", "tiny.toml", "80", "plain.toml", "8192"})
    EXPECT_THAT(vocabularies, HasSubstr(word));
  const std::string wild = write("wild.jsonl", "[2,3,4]\n[2,8192,4]\n");
  const std::string outside = refused({"eval", plain_, "--tokens", wild, "--against", plain_}, 1);
  for (const char* word : {"8192", "8191", "sequence 2", "wild.jsonl"}) EXPECT_THAT(outside, HasSubstr(word));
  ConfigText narrow;
  narrow.engine = "threads = 2\nmax_sequences = 2\nmax_context = 100\nmax_step_tokens = 64";
  const std::string brief = config("brief", narrow, "checkpoint");
  const std::string long_one = refused({"eval", plain_, "--tokens", tokens_, "--against", brief}, 1);
  for (const char* word : {"150", "100", "brief.toml", "sequence 4"}) EXPECT_THAT(long_one, HasSubstr(word));
  EXPECT_THAT(refused({"eval", plain_, "--tokens", tokens_, "--against", "none.toml"}, 2), HasSubstr("none.toml"));
}

TEST_F(EvalAgainstTest, TextNamesTheSameNumbers) {
  const ProgramResult run = run_facet({"eval", plain_, "--tokens", tokens_, "--against", plain_});
  ASSERT_EQ(run.exit_code, 0) << run.text();
  for (const char* word : {"mean NLL", "against ", "mean KL 0.000e+00", "top-1 agreement 1.0000", "length    150"})
    EXPECT_THAT(run.out, HasSubstr(word));
}

}  // namespace
}  // namespace facet::cli_test
