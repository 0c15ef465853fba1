// The CUDA quantizer against the CPU's and against sums in double, on small layers with fresh inputs.
#include <gmock/gmock.h>

#include <cmath>
#include <cstdlib>
#include <limits>

#include "facet/quantizer/engine.h"
#include "random_layer.h"

namespace facet::quantizer {
namespace {

using testing::HasSubstr;

std::string library() {
  if (const char* named = std::getenv("FACET_QUANTIZER_CUDA_LIBRARY"); named != nullptr) return named;
  return FACET_BINARY_DIR "/lib/facet/libfacet_quantizer_cuda.so";
}

class CudaQuantizerTest : public testing::Test {
 protected:
  void SetUp() override {
    try {
      device_ = make_cuda_engine(library());
    } catch (const EngineError& error) {
      if (std::getenv("FACET_REQUIRE_GPU") != nullptr) FAIL() << error.what();
      GTEST_SKIP() << error.what();
    }
  }

  // Rows in batches of a size that does not divide them, the last one short.
  static std::unique_ptr<Calibration> calibrate(Engine& engine, const RandomLayer& layer, const GptqOptions& options,
                                                const std::vector<float>* originals = nullptr) {
    auto inputs = engine.begin(layer.inputs, options, originals != nullptr);
    constexpr std::int64_t kRows = 300;
    for (std::int64_t row = 0; row < layer.rows; row += kRows) {
      const std::int64_t count = std::min(kRows, layer.rows - row), first = row * layer.inputs;
      std::copy_n(layer.x.begin() + first, count * layer.inputs, inputs->rows(count));
      if (originals != nullptr) std::copy_n(originals->begin() + first, count * layer.inputs, inputs->originals(count));
      inputs->add();
    }
    inputs->factor();
    return inputs;
  }
  GptqResult on_device(const RandomLayer& layer, const GptqOptions& options,
                       const std::vector<float>* originals = nullptr) {
    return calibrate(*device_, layer, options, originals)->quantize(layer.matrix(), options);
  }
  GptqResult on_cpu(const RandomLayer& layer, const GptqOptions& options,
                    const std::vector<float>* originals = nullptr) {
    return calibrate(*cpu_, layer, options, originals)->quantize(layer.matrix(), options);
  }
  // Share of the values that are the same on both.
  static double agreement(const RandomLayer& layer, const GptqOptions& options, const GptqResult& a,
                          const GptqResult& b) {
    std::int64_t same = 0;
    for (std::int64_t row = 0; row < layer.outputs; ++row) {
      for (std::int64_t column = 0; column < layer.inputs; ++column) {
        same += value_of(a.quantized, options, layer.inputs, row, column) ==
                        value_of(b.quantized, options, layer.inputs, row, column)
                    ? 1
                    : 0;
      }
    }
    return static_cast<double>(same) / static_cast<double>(layer.outputs * layer.inputs);
  }

  const Blas blas_;
  const ParallelFor parallel_;
  std::unique_ptr<Engine> cpu_ = make_cpu_engine(blas_, parallel_), device_;
};

std::string describe(const GptqOptions& options, unsigned seed) {
  return "seed " + std::to_string(seed) + " bits " + std::to_string(options.bits) + " group " +
         std::to_string(options.group_size) + (options.symmetric ? " symmetric" : " asymmetric") + " scales " +
         std::to_string(static_cast<int>(options.scales)) + " order " +
         std::to_string(static_cast<int>(options.order)) + " refinements " + std::to_string(options.refinements);
}

// A value near a tie may fall on either side, and what follows in its row then differs: so most values agree, and
// errors, to which such choices hardly matter, agree closely.
TEST_F(CudaQuantizerTest, MeetsTheCpuAndTheExactError) {
  const unsigned seed = std::random_device{}();
  const RandomLayer layer(75, 328, 1000, seed);
  const std::vector<double> exact = layer.exact_hessian();
  for (const bool symmetric : {true, false}) {
    for (const std::int64_t group : {32, 64, 128}) {
      for (const ScaleChoice scales : {ScaleChoice::largest, ScaleChoice::search, ScaleChoice::hessian}) {
        for (const ColumnOrder order : {ColumnOrder::natural, ColumnOrder::activation}) {
          for (const int refinements : {0, 2}) {
            GptqOptions options;
            options.symmetric = symmetric;
            options.group_size = group;
            options.scales = scales;
            options.order = order;
            options.refinements = refinements;
            SCOPED_TRACE(describe(options, seed));
            const GptqResult cpu = on_cpu(layer, options), device = on_device(layer, options);
            EXPECT_GE(agreement(layer, options, cpu, device), 0.9);
            EXPECT_NEAR(device.error, cpu.error, 0.02 * cpu.error);
            EXPECT_NEAR(device.nearest_error, cpu.nearest_error, 1e-3 * cpu.nearest_error);
            EXPECT_NEAR(device.predicted_loss, cpu.predicted_loss, 0.02 * cpu.predicted_loss);
            EXPECT_NEAR(device.output, cpu.output, 1e-4 * cpu.output);
            EXPECT_LE(device.error, device.nearest_error);
            // As on the CPU: a row's sum over 328 columns in float cancels.
            const double error = exact_error(layer, exact, device.quantized, options);
            EXPECT_NEAR(device.error, error, 328 * 0x1p-24 * device.output + 1e-4 * error);
          }
        }
      }
    }
  }
}

TEST_F(CudaQuantizerTest, EightBitsAndShapes) {
  const unsigned seed = std::random_device{}();
  struct Shape {
    std::int64_t out, in;
  };
  for (const Shape shape : {Shape{1, 200}, Shape{40, 1}, Shape{9, 40}, Shape{300, 129}, Shape{17, 1000}}) {
    for (const int bits : {4, 8}) {
      GptqOptions options;
      options.bits = bits;
      options.refinements = 1;
      SCOPED_TRACE(describe(options, seed) + " shape " + std::to_string(shape.out) + " x " + std::to_string(shape.in));
      const RandomLayer layer(shape.out, shape.in, 2 * shape.in + 50, seed);
      const GptqResult cpu = on_cpu(layer, options), device = on_device(layer, options);
      EXPECT_GE(agreement(layer, options, cpu, device), 0.9);
      EXPECT_NEAR(device.error, cpu.error, 0.02 * cpu.error + 1e-6 * cpu.output);
      EXPECT_LE(device.error, device.nearest_error);
    }
  }
}

TEST_F(CudaQuantizerTest, WithoutFeedbackItRoundsLikeTheCpu) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  const RandomLayer layer(64, 256, 500, seed);
  GptqOptions options;
  options.feedback = false;
  options.scales = ScaleChoice::largest;
  const GptqResult cpu = on_cpu(layer, options), device = on_device(layer, options);
  // No sums are involved: every bit is the same.
  EXPECT_EQ(cpu.quantized.words, device.quantized.words);
  EXPECT_EQ(cpu.quantized.scales, device.quantized.scales);
}

TEST_F(CudaQuantizerTest, TheCorrectionIsTheCpus) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  const RandomLayer layer(50, 192, 900, seed);
  // Originals that differ by a tenth.
  std::vector<float> originals = layer.x;
  std::mt19937 random(seed + 1);
  std::normal_distribution<float> normal(0.0f, 0.1f);
  for (float& value : originals) value += value * normal(random) + 0.1f * normal(random);
  GptqOptions options;
  options.correction = 0.5;
  options.group_size = 64;
  const GptqResult cpu = on_cpu(layer, options, &originals), device = on_device(layer, options, &originals);
  EXPECT_GE(agreement(layer, options, cpu, device), 0.9);
  EXPECT_NEAR(device.error, cpu.error, 0.02 * cpu.error);
  EXPECT_NEAR(device.output, cpu.output, 1e-3 * cpu.output);
}

TEST_F(CudaQuantizerTest, DeadColumnsAndASingularHessian) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  RandomLayer layer(20, 160, 60, seed);  // fewer rows than inputs
  for (std::int64_t row = 0; row < layer.rows; ++row) layer.x[static_cast<std::size_t>(row * 160 + 7)] = 0.0f;
  GptqOptions options;
  options.damping = 0;
  const auto device = calibrate(*device_, layer, options), cpu = calibrate(*cpu_, layer, options);
  EXPECT_EQ(device->facts().rows, 60);
  EXPECT_EQ(device->facts().dead_columns, 1);
  EXPECT_GT(device->facts().failures, 0);
  EXPECT_GT(device->facts().damping, 0.0);
  // Where double gives up may differ by one step.
  EXPECT_NEAR(std::log10(device->facts().damping), std::log10(cpu->facts().damping), 1.01);
  const GptqResult result = device->quantize(layer.matrix(), options);
  EXPECT_LE(result.error, result.nearest_error);
}

TEST_F(CudaQuantizerTest, NanIsNamed) {
  RandomLayer layer(8, 96, 20, 5);
  const GptqOptions options;
  layer.x[3 * 96 + 11] = std::numeric_limits<float>::quiet_NaN();
  layer.x[4 * 96 + 1] = std::numeric_limits<float>::infinity();
  try {
    calibrate(*device_, layer, options);
    ADD_FAILURE() << "NaN was taken";
  } catch (const InputError& error) {
    EXPECT_EQ(error.row(), 3);
    EXPECT_EQ(error.column(), 11);
  }
  RandomLayer bad(8, 96, 200, 6);
  bad.weights[5 * 96 + 17] = std::numeric_limits<float>::infinity();
  try {
    on_device(bad, options);
    ADD_FAILURE() << "infinity was taken";
  } catch (const QuantizeError& error) {
    EXPECT_THAT(error.what(), testing::AllOf(HasSubstr("layer.weight"), HasSubstr("[5, 17]")));
  }
}

TEST_F(CudaQuantizerTest, RunsAreEqual) {
  const RandomLayer layer(400, 384, 900, 7);
  GptqOptions options;
  options.refinements = 3;
  const GptqResult first = on_device(layer, options), second = on_device(layer, options);
  EXPECT_EQ(first.quantized.words, second.quantized.words);
  EXPECT_EQ(first.quantized.scales, second.quantized.scales);
  EXPECT_EQ(first.error, second.error);
}

TEST_F(CudaQuantizerTest, GroupsThatCutABlockAreRefused) {
  const RandomLayer layer(4, 300, 400, 8);
  for (const std::int64_t group : {std::int64_t{48}, std::int64_t{256}}) {
    GptqOptions options;
    options.group_size = group;
    EXPECT_THROW(on_device(layer, options), EngineError) << group;
  }
}

}  // namespace
}  // namespace facet::quantizer
