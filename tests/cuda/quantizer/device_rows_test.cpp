// Rows that the CUDA quantizer finds in device memory, against the CPU's on the same values.
#include <gmock/gmock.h>

#include <cstdlib>
#include <limits>

#include "../attention/device_memory.h"
#include "facet/quantizer/engine.h"
#include "facet/sdk/numeric.h"
#include "random_layer.h"

namespace facet::quantizer {
namespace {

using test::DeviceBuffer;

std::string library() {
  if (const char* named = std::getenv("FACET_QUANTIZER_CUDA_LIBRARY"); named != nullptr) return named;
  return FACET_BINARY_DIR "/lib/facet/libfacet_quantizer_cuda.so";
}

// Rounds to bf16 in place; returns the bits.
std::vector<std::uint16_t> round_to_bf16(std::vector<float>& values) {
  std::vector<std::uint16_t> bits(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    bits[i] = sdk::float_to_bf16(values[i]);
    values[i] = sdk::bf16_to_float(bits[i]);
  }
  return bits;
}

std::vector<float> shaken(const std::vector<float>& values, unsigned seed) {
  std::vector<float> made = values;
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, 0.1f);
  for (float& value : made) value += value * normal(random) + 0.1f * normal(random);
  return made;
}

class DeviceRowsTest : public testing::Test {
 protected:
  void SetUp() override {
    try {
      device_ = make_cuda_engine(library());
    } catch (const EngineError& error) {
      if (std::getenv("FACET_REQUIRE_GPU") != nullptr) FAIL() << error.what();
      GTEST_SKIP() << error.what();
    }
    test::require_cuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "a stream");
  }
  void TearDown() override {
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
  }

  // In batches of `batch` rows through one buffer, which the next batch overwrites as soon as the stream lets it.
  std::unique_ptr<Calibration> on_device(const RandomLayer& layer, const GptqOptions& options,
                                         const std::vector<std::uint16_t>& rows,
                                         const std::vector<std::uint16_t>* originals, std::int64_t batch) {
    auto inputs = device_->begin(layer.inputs, options, originals != nullptr);
    const auto values = static_cast<std::size_t>(batch * layer.inputs);
    const DeviceBuffer<std::uint16_t> buffer(values), other(values);
    for (std::int64_t row = 0; row < layer.rows; row += batch) {
      const std::int64_t count = std::min(batch, layer.rows - row);
      const auto copy = [&](const DeviceBuffer<std::uint16_t>& to, const std::vector<std::uint16_t>& from) {
        test::require_cuda(cudaMemsetAsync(to.data(), 0xff, to.bytes(), stream_), "NaN");
        test::require_cuda(
            cudaMemcpyAsync(to.data(), from.data() + row * layer.inputs,
                            static_cast<std::size_t>(count * layer.inputs) * 2, cudaMemcpyHostToDevice, stream_),
            "copying rows");
      };
      copy(buffer, rows);
      if (originals != nullptr) copy(other, *originals);
      inputs->add({buffer.data(), originals != nullptr ? other.data() : nullptr, count, stream_});
    }
    test::require_cuda(cudaStreamSynchronize(stream_), "the stream");
    inputs->factor();
    return inputs;
  }
  std::unique_ptr<Calibration> on_cpu(const RandomLayer& layer, const GptqOptions& options,
                                      const std::vector<float>* originals) {
    auto inputs = cpu_->begin(layer.inputs, options, originals != nullptr);
    std::copy(layer.x.begin(), layer.x.end(), inputs->rows(layer.rows));
    if (originals != nullptr) std::copy(originals->begin(), originals->end(), inputs->originals(layer.rows));
    inputs->add();
    inputs->factor();
    return inputs;
  }

  const Blas blas_;
  const ParallelFor parallel_;
  std::unique_ptr<Engine> cpu_ = make_cpu_engine(blas_, parallel_), device_;
  cudaStream_t stream_ = nullptr;
};

// The same bounds as for rows that come from the host: products of bf16 are exact, so nothing is rounded that was not.
TEST_F(DeviceRowsTest, MeetTheCpus) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  // 2,500 columns are three strips of the product; 131 is no multiple of 8 and keeps cuBLAS off its aligned kernels.
  struct Shape {
    std::int64_t outputs, inputs, rows, batch;
  };
  for (const Shape shape : {Shape{60, 328, 1000, 300}, Shape{31, 131, 700, 256}, Shape{16, 2500, 4000, 1500}}) {
    RandomLayer layer(shape.outputs, shape.inputs, shape.rows, seed);
    const std::vector<std::uint16_t> rows = round_to_bf16(layer.x);
    std::vector<float> originals = shaken(layer.x, seed + 1);
    const std::vector<std::uint16_t> original_rows = round_to_bf16(originals);
    for (const bool corrected : {false, true}) {
      SCOPED_TRACE(testing::Message() << shape.inputs << " inputs" << (corrected ? ", with originals" : ""));
      GptqOptions options;
      options.refinements = 1;
      options.group_size = 64;
      options.correction = corrected ? 0.5 : 0.0;
      const auto cpu = on_cpu(layer, options, corrected ? &originals : nullptr);
      const auto device = on_device(layer, options, rows, corrected ? &original_rows : nullptr, shape.batch);
      EXPECT_EQ(device->facts().rows, shape.rows);
      EXPECT_EQ(device->facts().dead_columns, cpu->facts().dead_columns);
      EXPECT_NEAR(device->facts().damping, cpu->facts().damping, 1e-5 * cpu->facts().damping);
      const GptqResult expected = cpu->quantize(layer.matrix(), options);
      const GptqResult result = device->quantize(layer.matrix(), options);
      EXPECT_NEAR(result.output, expected.output, (corrected ? 1e-3 : 1e-4) * expected.output);
      EXPECT_NEAR(result.error, expected.error, 0.02 * expected.error);
      EXPECT_NEAR(result.nearest_error, expected.nearest_error, (corrected ? 1e-2 : 1e-3) * expected.nearest_error);
      EXPECT_LE(result.error, result.nearest_error);
    }
  }
}

TEST_F(DeviceRowsTest, BatchesDoNotChangeTheResultMuchAndRunsNotAtAll) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  RandomLayer layer(40, 256, 900, seed);
  const std::vector<std::uint16_t> rows = round_to_bf16(layer.x);
  GptqOptions options;
  const auto quantize = [&](std::int64_t batch) {
    return on_device(layer, options, rows, nullptr, batch)->quantize(layer.matrix(), options);
  };
  const GptqResult first = quantize(900), again = quantize(900), pieces = quantize(64);
  EXPECT_EQ(first.quantized.words, again.quantized.words);
  EXPECT_EQ(first.quantized.scales, again.quantized.scales);
  EXPECT_EQ(first.error, again.error);
  EXPECT_NEAR(first.output, pieces.output, 1e-5 * first.output);
}

TEST_F(DeviceRowsTest, NanIsNamedInEither) {
  RandomLayer layer(8, 96, 40, 5);
  const GptqOptions options;
  const std::vector<std::uint16_t> rows = round_to_bf16(layer.x);
  for (const bool in_originals : {false, true}) {
    std::vector<std::uint16_t> bad = rows;
    bad[23 * 96 + 11] = 0x7f80;  // infinity
    bad[24 * 96 + 1] = 0x7fc0;   // NaN
    try {
      on_device(layer, options, in_originals ? rows : bad, in_originals ? &bad : &rows, 16);
      ADD_FAILURE() << "infinity was taken";
    } catch (const InputError& error) {
      EXPECT_EQ(error.row(), 7);  // of the second batch
      EXPECT_EQ(error.column(), 11);
    }
  }
}

TEST(HostRows, TheCpuHasNoDeviceMemory) {
  const Blas blas;
  const ParallelFor parallel;
  const auto engine = make_cpu_engine(blas, parallel);
  EXPECT_EQ(engine->free_bytes(), 0u);
  EXPECT_THROW(engine->begin(8, {}, false)->add(DeviceRows{}), EngineError);
}

}  // namespace
}  // namespace facet::quantizer
