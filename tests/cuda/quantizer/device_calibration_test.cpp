// The calibration forward on the GPU against the one in float, on a trained model: every stage's inputs of every layer.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <random>

#include "facet/backend/cpu_backend.h"
#include "facet/backend/cuda_backend.h"
#include "facet/quantizer/rtn.h"
#include "facet/sdk/numeric.h"
#include "gemma4/device_calibration.h"

namespace facet::gemma4 {
namespace {

using Sequences = std::vector<std::vector<std::int32_t>>;

class DoubleProducts final : public MatrixProducts {
 public:
  void multiply(std::int64_t m, std::int64_t n, std::int64_t k, In a, In b, Out out) const override {
    run(
        m, n, k, a, [&](std::int64_t i, std::int64_t j) { return b.values[i * b.stride + j]; }, out);
  }
  void multiply_transposed(std::int64_t m, std::int64_t n, std::int64_t k, In a, In b, Out out) const override {
    run(
        m, n, k, a, [&](std::int64_t i, std::int64_t j) { return b.values[j * b.stride + i]; }, out);
  }

 private:
  template <typename At>
  static void run(std::int64_t m, std::int64_t n, std::int64_t k, In a, const At& b, Out out) {
    for (std::int64_t row = 0; row < m; ++row) {
      for (std::int64_t column = 0; column < n; ++column) {
        double sum = 0;
        for (std::int64_t i = 0; i < k; ++i) sum += double{a.values[row * a.stride + i]} * double{b(i, column)};
        out.values[row * out.stride + column] = static_cast<float>(sum);
      }
    }
  }
};

LinearWeight quantized(const LinearWeight& weight, const LinearFormat& format) {
  const quantizer::Matrix matrix{"weight", quantizer::Matrix::Type::bf16, weight.view().values, weight.out_features(),
                                 weight.in_features()};
  quantizer::RtnOptions options;
  options.symmetric = format.symmetric;
  options.group_size = format.group_size;
  quantizer::Quantized made = quantizer::quantize_rtn(matrix, options);
  return LinearWeight::from_parts(format.format, weight.out_features(), weight.in_features(), format.group_size,
                                  made.words.data(), (weight.in_features() + 7) / 8 * 4, std::move(made.scales),
                                  std::move(made.zeros));
}

class DeviceCalibrationTest : public testing::Test {
 protected:
  void SetUp() override {
    try {
      device_ = make_cuda_backend();
    } catch (const Error& error) {
      if (std::getenv("FACET_REQUIRE_GPU") != nullptr) FAIL() << error.what();
      GTEST_SKIP() << error.what();
    }
    registry_ = std::make_unique<PluginRegistry>(
        services_.table(), std::vector<std::filesystem::path>{FACET_BINARY_DIR "/lib/facet/plugins"});
  }

  LinearWeight source(const StageModule& module, std::int64_t in) const {
    return load_linear(checkpoint_, facts_.quantization, module.name, module.out_features, in);
  }
  static std::vector<float> floats(const LinearWeight& weight) {
    std::vector<float> values(static_cast<std::size_t>(weight.out_features() * weight.in_features()));
    for (std::int64_t row = 0; row < weight.out_features(); ++row)
      dequantize_row(weight.view(), row, values.data() + row * weight.in_features());
    return values;
  }
  // Share of the float's root mean square that a batch's rows are off by.
  double distance(const void* rows, const CalibrationBatch& batch, std::int64_t width,
                  const std::function<void(std::size_t sequence, float* out)>& exact) {
    const auto count = static_cast<std::size_t>(batch.tokens() * width);
    const auto* bits = static_cast<const std::uint16_t*>(device_->read_back(rows, count * 2));
    std::vector<float> expected(count);
    for (std::size_t i = 0; i < batch.sequences(); ++i)
      exact(batch.first + i, expected.data() + batch.token_begin[i] * width);
    double error = 0, size = 0;
    for (std::size_t i = 0; i < count; ++i) {
      const double value = double{expected[i]};
      error += std::pow(double{sdk::bf16_to_float(bits[i])} - value, 2);
      size += value * value;
    }
    return std::sqrt(error / size);
  }

  HostServices services_{0, "auto"};
  std::unique_ptr<Backend> host_ = make_cpu_backend(services_), device_;
  std::unique_ptr<PluginRegistry> registry_;
  const Checkpoint checkpoint_ = Checkpoint::open(FACET_SOURCE_DIR "/models/gemma4/checkpoints/docs-5m");
  const CheckpointFacts facts_ = read_facts(checkpoint_);
  const DoubleProducts products_{};
};

// Every value on the way is rounded to bf16 (2^-9 of it at most): some ten roundings a layer, which add up like a
// random walk over three layers, and a softmax whose scores of up to some ten turn their rounding into that share of a
// weight. 2 % of the root mean square leaves a factor of three; a wrong window, norm or rotation is off by tens of
// percent.
constexpr double kMostDistance = 0.02;

LinearFormat dense_format(const std::string& /*module*/, std::int64_t /*in_features*/) {
  return {};
}
// A mixture: up stays bf16, so gate and up are two calls.
LinearFormat mixed_format(const std::string& module, std::int64_t /*in_features*/) {
  if (module.find("up_proj") != std::string::npos) return {};
  return {abi::WeightFormat::int4, 32, false};
}

class WalkTest : public DeviceCalibrationTest, public testing::WithParamInterface<std::int64_t> {
 protected:
  struct Walk {
    DeviceCalibration device;
    std::vector<CalibrationForward> exact;
    LayerMatrices matrices[2];
  };
  Sequences random_sequences(unsigned seed) const {
    std::mt19937 random(seed);
    std::uniform_int_distribution<std::int32_t> id(0, static_cast<std::int32_t>(facts_.model.vocabulary) - 1);
    Sequences sequences;
    for (const std::size_t length : {37u, 1u, 300u, 2u, 129u, 64u}) {
      sequences.emplace_back(length);
      for (std::int32_t& value : sequences.back()) value = id(random);
    }
    return sequences;
  }
  void embed(Walk& walk) {
    const LinearWeight table = source({facts_.prefix + "embed_tokens", facts_.model.vocabulary}, facts_.model.hidden);
    const abi::WeightView tables[] = {table.view(), table.view()};
    walk.device.embed(tables);
    std::uint64_t held = 0;
    for (const MemoryAccount& account : device_->accounts()) held += account.bytes;
    EXPECT_EQ(held, walk.device.state_bytes());
    for (CalibrationForward& model : walk.exact) {
      for (std::size_t i = 0; i < model.sequences(); ++i) model.embed(i, table.view());
    }
  }
  void compare_inputs(Walk& walk, std::size_t model, LayerStage stage, std::int64_t width) {
    for (std::size_t batch = 0; batch < walk.device.batches().size(); ++batch) {
      const auto exact = [&](std::size_t i, float* out) {
        walk.exact[model].input(stage, i, walk.matrices[model], out);
      };
      EXPECT_LT(distance(walk.device.input(model, stage, batch), walk.device.batches()[batch], width, exact),
                kMostDistance)
          << "batch " << batch;
    }
  }
  void advance(Walk& walk, std::size_t model, LayerStage stage, const StageModules& modules) {
    std::vector<LinearWeight> weights;
    for (const StageModule& module : modules.modules) {
      const LinearWeight dense = source(module, modules.in_features);
      const LinearFormat wanted = mixed_format(module.name, modules.in_features);
      const bool round = model == 1 && wanted.format == abi::WeightFormat::int4;
      weights.push_back(round ? quantized(dense, wanted) : dense);
      walk.matrices[model][stage].push_back(floats(weights.back()));
    }
    walk.device.advance(model, stage, weights);
    CalibrationForward& exact = walk.exact[model];
    for (std::size_t i = 0; i < exact.sequences(); ++i) exact.advance(stage, i, walk.matrices[model]);
  }
};

TEST_P(WalkTest, EveryInputIsTheFloatForwards) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  const Sequences sequences = random_sequences(seed);
  Walk walk{{facts_, checkpoint_, *device_, *registry_, sequences, GetParam(), {dense_format, mixed_format}}, {}, {}};
  for (int model = 0; model < 2; ++model) walk.exact.emplace_back(facts_, checkpoint_, *host_, products_, sequences);
  embed(walk);
  for (std::size_t layer = 0; layer < facts_.model.layers.size(); ++layer) {
    walk.device.begin_layer(layer);
    for (CalibrationForward& model : walk.exact) model.begin_layer(layer);
    for (LayerMatrices& matrices : walk.matrices) matrices = {};
    for (const LayerStage stage : kLayerStages) {
      const StageModules modules = stage_modules(facts_, layer, stage);
      for (std::size_t model = 0; model < 2; ++model) {
        SCOPED_TRACE(testing::Message() << modules.modules.front().name << " of model " << model);
        compare_inputs(walk, model, stage, modules.in_features);
        advance(walk, model, stage, modules);
      }
    }
  }
  for (std::size_t model = 0; model < 2; ++model) {
    for (std::size_t batch = 0; batch < walk.device.batches().size(); ++batch) {
      const auto exact = [&](std::size_t i, float* out) { walk.exact[model].head_input(i, out); };
      EXPECT_LT(
          distance(walk.device.head_input(model, batch), walk.device.batches()[batch], facts_.model.hidden, exact),
          kMostDistance);
    }
  }
}

// Several batches, one of them a sequence longer than a batch; and all in one.
INSTANTIATE_TEST_SUITE_P(BatchTokens, WalkTest, testing::Values(200, 10000));

TEST_F(DeviceCalibrationTest, SequencesAreChecked) {
  const std::vector<DeviceCalibration::FormatOf> dense = {dense_format};
  const auto vocabulary = static_cast<std::int32_t>(facts_.model.vocabulary);
  for (const Sequences& sequences : {Sequences{{1, vocabulary}}, Sequences{{1}, {-1}}}) {
    EXPECT_THROW(DeviceCalibration(facts_, checkpoint_, *device_, *registry_, sequences, 64, dense), Error);
  }
}

}  // namespace
}  // namespace facet::gemma4
