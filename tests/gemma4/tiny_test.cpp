// Output heads, missing projections and nested files: field report 28 on checkpoints made here.
#include <gmock/gmock.h>

#include <random>

#include "direct_run.h"
#include "facet/base/log.h"
#include "facet/checkpoint/float_bits.h"
#include "facet/checkpoint/quantized_writer.h"
#include "facet/quantizer/rtn.h"
#include "tiny_checkpoint.h"

namespace facet::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr std::uint64_t kSeed = 20'261'129;
constexpr const char* kEmbedding = "model.embed_tokens.weight";
constexpr const char* kHead = "lm_head.weight";

struct Loaded {
  std::vector<float> logits;
  std::string log;
  bool own_head = false;
  MemoryPlan memory;
  std::string form_refused;  // who did not take the shared form of the cache, and why
};

class Tiny : public testing::Test {
 protected:
  void SetUp() override {
    level_ = log_level();
    set_log_level(LogLevel::info);
  }
  void TearDown() override { set_log_level(level_); }

  // Logits of 20 ids, more than two windows, and what was logged while loading.
  Loaded load(const std::filesystem::path& folder, const std::string& linear = "reference",
              const std::string& kv_form = "auto") {
    PipelineConfig config;
    config.model = folder;
    config.kv_form = kv_form;
    config.linear = linear;
    config.attention = "reference";
    config.max_context = 32;
    config.max_step_tokens = 16;
    config.threads = 1;
    Loaded loaded;
    testing::internal::CaptureStderr();
    std::unique_ptr<gemma4::Pipeline> pipeline;
    try {
      pipeline = load_pipeline(config);
    } catch (...) {
      testing::internal::GetCapturedStderr();
      throw;
    }
    loaded.log = testing::internal::GetCapturedStderr();
    std::mt19937 random(7);
    Ids ids(20);
    for (std::int32_t& id : ids) id = static_cast<std::int32_t>(random() % TinyCheckpoint::kVocabulary);
    loaded.logits = run_directly(*pipeline, ids, 6).logits;
    loaded.own_head = pipeline->plan().facts().own_head;
    loaded.memory = pipeline->memory();
    for (const auto& module : pipeline->plan().attention())
      for (const Refusal& refusal : module->form_refused())
        loaded.form_refused += refusal.plugin + ": " + refusal.reasons;
    for (const float x : loaded.logits) EXPECT_TRUE(std::isfinite(x));
    return loaded;
  }
  Loaded load(const TinyCheckpoint& checkpoint, const std::string& linear = "reference",
              const std::string& kv_form = "auto") {
    const std::filesystem::path folder = folder_ / std::to_string(count_++);
    checkpoint.write(folder);
    return load(folder, linear, kv_form);
  }
  std::string refusal(const std::filesystem::path& folder) {
    try {
      load(folder);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::checkpoint);
      return error.full_text();
    }
    ADD_FAILURE() << "loaded";
    return {};
  }
  std::string refusal(const TinyCheckpoint& checkpoint) {
    const std::filesystem::path folder = folder_ / std::to_string(count_++);
    checkpoint.write(folder);
    return refusal(folder);
  }

  TestFolder folder_;
  int count_ = 0;
  LogLevel level_ = LogLevel::warn;
};

TEST_F(Tiny, TiedHeadAbsentOrAnIdenticalCopyIsOneMatrix) {
  TinyCheckpoint checkpoint(kSeed);
  for (const char* linear : {"reference", "dense"}) {
    checkpoint.tensors.erase(kHead);
    const Loaded absent = load(checkpoint, linear);
    EXPECT_FALSE(absent.own_head);
    checkpoint.tensors[kHead] = checkpoint.tensors.at(kEmbedding);
    const Loaded copy = load(checkpoint, linear);
    EXPECT_FALSE(copy.own_head);
    EXPECT_EQ(copy.logits, absent.logits);
    EXPECT_EQ(copy.memory.weights, absent.memory.weights);
    EXPECT_EQ(copy.memory.weights_mapped, absent.memory.weights_mapped);
    EXPECT_THAT(copy.log, Not(HasSubstr("lm_head")));
  }
}

TEST_F(Tiny, TiedHeadThatDiffersWinsWithAWarning) {
  TinyCheckpoint checkpoint(kSeed);
  const Loaded tied = load(checkpoint);
  checkpoint.tensors[kHead] = checkpoint.random({TinyCheckpoint::kVocabulary, TinyCheckpoint::kHidden}, 0, 0.2);
  const Loaded differs = load(checkpoint);
  EXPECT_TRUE(differs.own_head);
  EXPECT_NE(differs.logits, tied.logits);
  EXPECT_THAT(differs.log, AllOf(HasSubstr("warn"), HasSubstr("lm_head.weight differs")));
  checkpoint.config["tie_word_embeddings"] = false;
  const Loaded untied = load(checkpoint);
  EXPECT_EQ(untied.logits, differs.logits);
  EXPECT_THAT(untied.log, Not(HasSubstr("lm_head")));
}

TEST_F(Tiny, UntiedHeadThatIsAbsentIsRefused) {
  TinyCheckpoint checkpoint(kSeed);
  checkpoint.config["tie_word_embeddings"] = false;
  EXPECT_THAT(refusal(checkpoint), AllOf(HasSubstr("tie_word_embeddings"), HasSubstr("lm_head.weight")));
}

// F16 bits of random numbers in [-0.5, 0.5] whose last three mantissa bits are 0, so that bf16 holds them too.
TinyCheckpoint::Values exact_f16(std::vector<std::int64_t> shape) {
  TinyCheckpoint::Values values{TensorType::f16, std::move(shape), {}};
  std::mt19937 random(11);
  for (std::int64_t i = 0; i < values.shape[0] * values.shape[1]; ++i) {
    const auto exponent = static_cast<std::uint32_t>(9 + random() % 5);
    values.bits.push_back(static_cast<std::uint16_t>((random() % 2) << 15 | exponent << 10 | (random() % 128) << 3));
  }
  return values;
}

QuantizedMatrix round_to_nearest(const DenseMatrix& matrix, const QuantizationScheme& scheme) {
  quantizer::Quantized made = quantizer::quantize_rtn(
      {matrix.name, quantizer::Matrix::Type::bf16, matrix.values, matrix.out_features, matrix.in_features},
      {.bits = scheme.bits, .symmetric = scheme.symmetric, .group_size = scheme.group_size});
  return {std::move(made.words), std::move(made.scales), std::move(made.zeros)};
}

class TinyInt4 : public Tiny {
 protected:
  std::filesystem::path quantized(const TinyCheckpoint& checkpoint) {
    const std::filesystem::path dense = folder_ / std::to_string(count_++), packed = folder_ / std::to_string(count_++);
    checkpoint.write(dense);
    QuantizeJob job;
    job.in = dense;
    job.out = packed;
    job.linear = {4, true, 32};
    job.quantize = round_to_nearest;
    quantize_checkpoint(job);
    return packed;
  }
};

TEST_F(TinyInt4, BodyWithAnF16Head) {
  TinyCheckpoint checkpoint(kSeed);
  checkpoint.config["tie_word_embeddings"] = false;
  checkpoint.tensors[kHead] = exact_f16({TinyCheckpoint::kVocabulary, TinyCheckpoint::kHidden});
  const Loaded half = load(quantized(checkpoint));
  EXPECT_TRUE(half.own_head);
  // The same numbers as bf16.
  TinyCheckpoint::Values& head = checkpoint.tensors.at(kHead);
  head.type = TensorType::bf16;
  for (std::uint16_t& bits : head.bits) bits = float_to_bf16(f16_to_float(bits));
  EXPECT_EQ(load(quantized(checkpoint)).logits, half.logits);
  // The body is INT4: not the logits of the dense one.
  EXPECT_NE(load(checkpoint).logits, half.logits);
}

// F16 has three bits of mantissa more than bf16: the head loads as its nearest bf16.
TEST_F(TinyInt4, F16HeadThatBf16CannotHoldIsRounded) {
  TinyCheckpoint checkpoint(kSeed);
  checkpoint.config["tie_word_embeddings"] = false;
  checkpoint.tensors[kHead] = exact_f16({TinyCheckpoint::kVocabulary, TinyCheckpoint::kHidden});
  TinyCheckpoint::Values& head = checkpoint.tensors.at(kHead);
  for (std::uint16_t& bits : head.bits) bits |= 5;
  const Loaded half = load(quantized(checkpoint));
  head.type = TensorType::bf16;
  for (std::uint16_t& bits : head.bits) bits = float_to_bf16(f16_to_float(bits));
  EXPECT_EQ(load(quantized(checkpoint)).logits, half.logits);
  // A NaN is no weight.
  head.type = TensorType::f16;
  head.bits[TinyCheckpoint::kHidden * 3 + 5] = 0x7c01;
  EXPECT_THAT(refusal(quantized(checkpoint)), AllOf(HasSubstr("lm_head.weight"), HasSubstr("[3, 5]")));
}

TEST_F(Tiny, GlobalLayerWithoutValuesTakesItsKeys) {
  TinyCheckpoint checkpoint(kSeed);
  const Loaded shared = load(checkpoint, "reference", "full");
  // The same with the sharing written out.
  checkpoint.config["attention_k_eq_v"] = false;
  checkpoint.tensors["model.layers.1.self_attn.v_proj.weight"] =
      checkpoint.tensors.at("model.layers.1.self_attn.k_proj.weight");
  EXPECT_EQ(load(checkpoint).logits, shared.logits);
  checkpoint.tensors["model.layers.1.self_attn.v_proj.weight"] = checkpoint.random({64, 64}, 0, 0.1);
  EXPECT_NE(load(checkpoint).logits, shared.logits);
}

// Tokens chosen from the logits of a decoding step, before and after they are read, are those of what is read, which is
// the same every time and whether the step or the call computes it.
TEST_F(Tiny, LogitsAreCappedOnce) {
  const std::filesystem::path folder = folder_ / std::to_string(count_++);
  TinyCheckpoint(kSeed).write(folder);
  PipelineConfig config;
  config.model = folder;
  config.linear = config.attention = "reference";
  config.max_context = 32;
  config.threads = 1;
  const auto pipeline = load_pipeline(config);
  Model& model = pipeline->model();
  const Ids ids = {5, 9, 70, 3};
  const std::vector<std::int32_t> rows = {0};
  const std::vector<RowSampling> greedy(1), drawn(1, RowSampling{1.5, 0, 1, 0, 0.4});
  const auto read = [&] {
    const float* values = model.logits(rows);
    return std::vector<float>(values, values + model.vocabulary());
  };
  const auto choose = [&] { return std::vector{model.choose(rows, greedy)[0], model.choose(rows, drawn)[0]}; };
  std::vector<std::vector<float>> seen[2];
  for (const std::uint64_t sequence : {0u, 1u}) {
    model.kv().open(sequence, ids, 0, 0);
    for (std::int32_t position = 0; position < 4; ++position) {
      ASSERT_EQ(model.kv().reserve(sequence, 1), KvResult::ok);
      model.kv().begin_step({&sequence, 1});
      const std::int32_t owner = 0, token_begin[] = {0, 1};
      StepInput input;
      input.ids = &ids[static_cast<std::size_t>(position)];
      input.positions = &position;
      input.sequence = &owner;
      input.batch = {sizeof(abi::BatchView), 1, 1, token_begin, &position, 1, position + 1};
      input.all_logits = sequence == 1;
      model.forward(input);
      model.kv().commit(sequence, {input.ids, 1});
      std::vector<std::int32_t> chosen;
      if (position % 2 == 0) chosen = choose();
      const std::vector<float> logits = read();
      EXPECT_EQ(read(), logits);
      if (position % 2 == 1) chosen = choose();
      EXPECT_EQ(chosen, (std::vector{most_probable(logits), TokenDraw().choose(logits, drawn[0])}));
      EXPECT_EQ(read(), logits);
      seen[sequence].push_back(logits);
    }
    model.kv().close(sequence);
  }
  EXPECT_EQ(seen[0], seen[1]);
}

// The shared form of the cache is chosen by itself, holds fewer bytes and says the same up to rounding of fp32.
TEST_F(Tiny, SharedFormOfTheCacheSaysTheSame) {
  TinyCheckpoint checkpoint(kSeed);
  const Loaded full = load(checkpoint, "reference", "full"), shared = load(checkpoint, "reference", "shared");
  const Loaded chosen = load(checkpoint);
  EXPECT_EQ(chosen.logits, shared.logits);
  EXPECT_EQ(chosen.memory.kv_global, shared.memory.kv_global);
  EXPECT_LT(shared.memory.kv_global, full.memory.kv_global);
  EXPECT_EQ(shared.memory.kv_sliding, full.memory.kv_sliding);
  ASSERT_EQ(shared.logits.size(), full.logits.size());
  float largest = 0;
  for (const float x : full.logits) largest = std::max(largest, std::abs(x));
  for (std::size_t i = 0; i < full.logits.size(); ++i)
    ASSERT_NEAR(shared.logits[i], full.logits[i], 1e-5f * largest) << "logit " << i;
}

// Four pairs of a head turn, fewer than the kernels read at once: whole keys, and why; asked for, it is an error.
TEST_F(Tiny, SharedFormThatNoKernelReadsIsNotChosen) {
  TinyCheckpoint checkpoint(kSeed);
  checkpoint.config["rope_parameters"]["full_attention"]["partial_rotary_factor"] = 0.125;
  const Loaded full = load(checkpoint, "reference", "full"), chosen = load(checkpoint);
  EXPECT_EQ(chosen.logits, full.logits);
  EXPECT_EQ(chosen.memory.kv_global, full.memory.kv_global);
  EXPECT_THAT(full.form_refused, HasSubstr("engine.kv_form"));
  EXPECT_THAT(chosen.form_refused, AllOf(HasSubstr("reference"), HasSubstr("key_channels 8")));
  EXPECT_EQ(load(TinyCheckpoint(kSeed)).form_refused, "");
  try {
    load(checkpoint, "reference", "shared");
    FAIL() << "loaded";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::plugin);
    EXPECT_THAT(error.full_text(), HasSubstr("key_channels 8"));
  }
}

// Where no layer's keys follow from its values, nothing can be shared, and asking for it is a mistake.
TEST_F(Tiny, SharedFormOfNoLayerIsRefused) {
  TinyCheckpoint checkpoint(kSeed);
  checkpoint.config["attention_k_eq_v"] = false;
  checkpoint.tensors["model.layers.1.self_attn.v_proj.weight"] =
      checkpoint.tensors.at("model.layers.1.self_attn.k_proj.weight");
  try {
    load(checkpoint, "reference", "shared");
    FAIL() << "loaded";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::config);
    EXPECT_THAT(error.full_text(), HasSubstr("engine.kv_form"));
  }
}

TEST_F(Tiny, WindowLayerWithoutValuesIsRefusedByName) {
  TinyCheckpoint checkpoint(kSeed);
  checkpoint.tensors.erase("model.layers.0.self_attn.v_proj.weight");
  EXPECT_THAT(refusal(checkpoint),
              AllOf(HasSubstr("layer 0 (sliding attention)"), HasSubstr("model.layers.0.self_attn.v_proj.weight")));
}

TEST_F(Tiny, EveryMissingTensorIsListed) {
  TinyCheckpoint checkpoint(kSeed);
  for (const char* name : {"model.norm.weight", "model.layers.1.layer_scalar", "model.layers.0.mlp.up_proj.weight"})
    checkpoint.tensors.erase(name);
  EXPECT_THAT(refusal(checkpoint), AllOf(HasSubstr("model.norm.weight"), HasSubstr("model.layers.1.layer_scalar"),
                                         HasSubstr("model.layers.0.mlp.up_proj.weight")));
}

TEST_F(Tiny, WrongShapeIsRefusedByName) {
  TinyCheckpoint checkpoint(kSeed);
  checkpoint.tensors["model.layers.0.mlp.up_proj.weight"] = checkpoint.random({95, 64}, 0, 0.1);
  EXPECT_THAT(refusal(checkpoint),
              AllOf(HasSubstr("model.layers.0.mlp.up_proj.weight"), HasSubstr("[95, 64]"), HasSubstr("[96, 64]")));
}

TEST_F(Tiny, NestedFileSaysTheSameAndCountsWhatItSkips) {
  TinyCheckpoint checkpoint(kSeed);
  const Loaded flat = load(checkpoint);
  EXPECT_THAT(flat.log, Not(HasSubstr("skipped")));
  checkpoint.nest();
  const Loaded nested = load(checkpoint);
  EXPECT_EQ(nested.logits, flat.logits);
  EXPECT_THAT(nested.log, AllOf(HasSubstr("skipped 3 tensors"), HasSubstr("model.vision_tower"),
                                HasSubstr("model.audio_tower"), Not(HasSubstr("not used"))));
}

}  // namespace
}  // namespace facet::test
