#include "facet/backend/cpu_backend.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "facet/sdk/kv_rows.h"

namespace facet {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

class CpuBackendTest : public testing::Test {
 protected:
  HostServices services_{2, "auto"};
  std::unique_ptr<Backend> backend_ = make_cpu_backend(services_);
};

TEST_F(CpuBackendTest, AllocationsAreZeroAlignedAndCounted) {
  {
    const DeviceBuffer buffer = backend_->allocate(1000, 256, "test");
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer.data()) % 256, 0u);
    for (int i = 0; i < 1000; ++i) ASSERT_EQ(buffer.as<char>()[i], 0);
    EXPECT_EQ(services_.accounts().front().bytes, 1000u);
  }
  EXPECT_EQ(services_.accounts().front().bytes, 0u);
  EXPECT_EQ(services_.accounts().front().peak_bytes, 1000u);
}

TEST_F(CpuBackendTest, RotaryUsesFloatAngles) {
  const std::vector<float> frequency = {1.0f, 0.1f, 1e-4f};
  const std::vector<std::int32_t> positions = {0, 1, 1023, 262143};
  std::vector<float> cosine(12, kNan), sine(12, kNan);
  backend_->rotary(positions.data(), 4, frequency.data(), {3, cosine.data(), sine.data()});
  for (std::size_t t = 0; t < 4; ++t) {
    for (std::size_t i = 0; i < 3; ++i) {
      // The product is rounded to float first, as in the reference model; then cos and sin of that angle.
      const double angle = static_cast<float>(positions[t]) * frequency[i];
      EXPECT_NEAR(cosine[t * 3 + i], std::cos(angle), 1e-7);
      EXPECT_NEAR(sine[t * 3 + i], std::sin(angle), 1e-7);
    }
  }
}

// Queries, keys and values of a ragged batch land where the view says, in every element type and order, and nowhere
// else.
struct PrepareCase {
  abi::DType element;
  abi::KvOrder order;
  bool values_from_keys;
};

class PrepareAttention : public CpuBackendTest, public testing::WithParamInterface<PrepareCase> {};

INSTANTIATE_TEST_SUITE_P(All, PrepareAttention,
                         testing::Values(PrepareCase{abi::DType::f32, abi::KvOrder::token_major, false},
                                         PrepareCase{abi::DType::f32, abi::KvOrder::head_major, true},
                                         PrepareCase{abi::DType::bf16, abi::KvOrder::head_major, false},
                                         PrepareCase{abi::DType::i8, abi::KvOrder::token_major, true},
                                         PrepareCase{abi::DType::i8, abi::KvOrder::head_major, false}));

TEST_P(PrepareAttention, WritesRowsAndQueries) {
  const PrepareCase& param = GetParam();
  const std::int64_t q_heads = 4, kv_heads = 2, dim = 32, blocks = 3, rows = 4, tokens = 3;
  abi::KvView view{};
  view.layout = {sizeof(abi::KvLayout),
                 abi::KvAddressing::paged,
                 param.order,
                 param.element,
                 param.element == abi::DType::i8 ? abi::KvScales::per_row_head : abi::KvScales::none,
                 4,
                 64};
  const sdk::KvStrides strides = sdk::kv_strides(view.layout, kv_heads, dim);
  // 4 bytes an element are enough for every type; unwritten rows show as 0x7f bytes.
  std::vector<unsigned char> keys(static_cast<std::size_t>(strides.block * blocks * 4), 0x7f), values = keys;
  std::vector<float> key_scales(static_cast<std::size_t>(strides.scale_block * blocks + 1), kNan),
      value_scales = key_scales;
  const std::vector<std::int32_t> table = {2, -1, 0, 1};
  view.kv_heads = kv_heads;
  view.head_dim = dim;
  view.keys = keys.data();
  view.values = values.data();
  view.key_scales = key_scales.data();
  view.value_scales = value_scales.data();
  sdk::set_strides(view, strides);
  view.block_table = table.data();
  view.table_stride = 2;

  std::mt19937 generator(9);
  std::normal_distribution<float> normal;
  const std::int64_t stride = (q_heads + (param.values_from_keys ? 1 : 2) * kv_heads) * dim;
  std::vector<float> projections(static_cast<std::size_t>(tokens * stride)), q_norm(32), k_norm(32);
  for (auto* list : {&projections, &q_norm, &k_norm}) {
    for (float& value : *list) value = normal(generator);
  }
  const std::vector<float> cosine(static_cast<std::size_t>(tokens), 0.6f), sine(static_cast<std::size_t>(tokens), 0.8f);
  const std::vector<std::int32_t> positions = {1, 0, 7}, sequence = {0, 1, 1};
  std::vector<float> queries(static_cast<std::size_t>(tokens * q_heads * dim), kNan);
  AttentionInput input;
  input.projections = projections.data();
  input.stride = stride;
  input.query_heads = q_heads;
  input.kv_heads = kv_heads;
  input.head_dim = dim;
  input.values_from_keys = param.values_from_keys;
  input.query_norm = q_norm.data();
  input.key_norm = k_norm.data();
  input.epsilon = 1e-6f;
  input.rotary = {1, const_cast<float*>(cosine.data()), const_cast<float*>(sine.data())};
  input.positions = positions.data();
  input.sequence = sequence.data();
  input.tokens = tokens;
  input.kv = &view;
  input.queries = queries.data();
  backend_->prepare_attention(input);

  const auto normalised = [&](const float* in, const float* weight, bool turn) {
    double sum = 0;
    for (std::int64_t i = 0; i < dim; ++i) sum += static_cast<double>(in[i]) * in[i];
    std::vector<double> out(static_cast<std::size_t>(dim));
    for (std::size_t i = 0; i < out.size(); ++i) {
      out[i] = in[i] / std::sqrt(sum / static_cast<double>(dim) + 1e-6) * (weight != nullptr ? weight[i] : 1.0f);
    }
    if (turn) {
      const double a = out[0], b = out[16];
      out[0] = a * 0.6 - b * 0.8;
      out[16] = b * 0.6 + a * 0.8;
    }
    return out;
  };
  const auto stored = [&](const std::vector<unsigned char>& pool, const std::vector<float>& scales, std::int64_t offset,
                          std::int64_t scale_offset, std::int64_t d) -> double {
    if (param.element == abi::DType::f32) return reinterpret_cast<const float*>(pool.data())[offset + d];
    if (param.element == abi::DType::bf16)
      return sdk::bf16_to_float(reinterpret_cast<const std::uint16_t*>(pool.data())[offset + d]);
    return static_cast<double>(reinterpret_cast<const std::int8_t*>(pool.data())[offset + d]) *
           static_cast<double>(scales[static_cast<std::size_t>(scale_offset)]);
  };
  for (std::int64_t t = 0; t < tokens; ++t) {
    const float* q = projections.data() + t * stride;
    const float* k = q + q_heads * dim;
    const float* v = param.values_from_keys ? k : k + kv_heads * dim;
    for (std::int64_t head = 0; head < q_heads; ++head) {
      const std::vector<double> expected = normalised(q + head * dim, q_norm.data(), true);
      for (std::int64_t d = 0; d < dim; ++d) {
        EXPECT_NEAR(queries[static_cast<std::size_t>((t * q_heads + head) * dim + d)],
                    expected[static_cast<std::size_t>(d)], 2e-5);
      }
    }
    const auto row = static_cast<std::size_t>(t);
    const std::int64_t block = table[static_cast<std::size_t>(sequence[row] * 2 + positions[row] / rows)];
    for (std::int64_t head = 0; head < kv_heads; ++head) {
      const std::int64_t offset = block * strides.block + positions[row] % rows * strides.row + head * strides.head;
      const std::int64_t scale =
          block * strides.scale_block + positions[row] % rows * strides.scale_row + head * strides.scale_head;
      const std::vector<double> key = normalised(k + head * dim, k_norm.data(), true),
                                value = normalised(v + head * dim, nullptr, false);
      double largest = 0;
      for (const std::vector<double>* list : {&key, &value}) {
        for (const double x : *list) largest = std::max(largest, std::fabs(x));
      }
      // Half a step of the format at the largest value, plus float rounding.
      const double step = param.element == abi::DType::f32    ? 1e-5
                          : param.element == abi::DType::bf16 ? largest * 0x1p-8
                                                              : largest / 127 * 0.51;
      for (std::int64_t d = 0; d < dim; ++d) {
        EXPECT_NEAR(stored(keys, key_scales, offset, scale, d), key[static_cast<std::size_t>(d)], step + 1e-5);
        EXPECT_NEAR(stored(values, value_scales, offset, scale, d), value[static_cast<std::size_t>(d)], step + 1e-5);
      }
    }
  }
  // Three rows of two heads were written, and nothing else.
  const std::size_t bytes =
      static_cast<std::size_t>(tokens * kv_heads * dim) * static_cast<std::size_t>(sdk::element_bytes(param.element));
  EXPECT_GE(static_cast<std::size_t>(std::count(keys.begin(), keys.end(), 0x7f)), keys.size() - bytes);
}

// Tokens chosen with a cap are those of the capped logits; the logits stay as they are.
TEST_F(CpuBackendTest, ChoosesByCappedLogits) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const std::int64_t rows = 8;
  for (const std::int64_t vocabulary : {9, 1000, 40'000}) {
    std::mt19937 generator(13);
    std::normal_distribution<float> normal(0, 20);
    std::vector<float> logits(static_cast<std::size_t>(rows * vocabulary));
    for (float& value : logits) value = normal(generator);
    const auto row = [&](std::int64_t r) { return logits.data() + r * vocabulary; };
    row(1)[5] = 500;  // both become 30
    row(1)[7] = 600;
    row(2)[3] = kNan;
    row(3)[8] = kInfinity;
    std::fill_n(row(4), vocabulary, -kInfinity);
    std::fill_n(row(5), vocabulary, -1e30f);
    std::vector<RowSampling> how(static_cast<std::size_t>(rows));
    how[6] = {0.8, 40, 0.9, 0.01, 0.6};
    how[7] = {2.0, 0, 1, 0, 0.3};
    const std::vector<float> before = logits;
    std::vector<float> capped = logits;
    backend_->soft_cap(capped.data(), rows * vocabulary, 30);
    std::vector<std::int32_t> best(static_cast<std::size_t>(rows), -7), right = best, drawn = best, right_drawn = best;
    backend_->argmax(logits.data(), rows, vocabulary, 30, best.data());
    backend_->argmax(capped.data(), rows, vocabulary, 0, right.data());
    backend_->sample(logits.data(), rows, vocabulary, 30, how.data(), drawn.data());
    backend_->sample(capped.data(), rows, vocabulary, 0, how.data(), right_drawn.data());
    EXPECT_EQ(best, right) << vocabulary;
    EXPECT_EQ(drawn, right_drawn) << vocabulary;
    for (const std::vector<std::int32_t>* ids : {&best, &drawn}) {
      EXPECT_EQ((*ids)[1], 5);
      EXPECT_EQ((*ids)[2], -1);
      EXPECT_EQ((*ids)[3], 8);
      EXPECT_EQ((*ids)[4], 0);
      EXPECT_EQ((*ids)[5], 0);
    }
    EXPECT_EQ(std::memcmp(logits.data(), before.data(), before.size() * sizeof(float)), 0);
  }
}

TEST_F(CpuBackendTest, LargeAndSmallBatchesGiveTheSameRows) {
  // One row runs on the caller, many run in parallel: the same code must give the same bits.
  const std::int64_t width = 384, tokens = 200;
  std::mt19937 generator(11);
  std::normal_distribution<float> normal;
  std::vector<float> in(static_cast<std::size_t>(width * tokens)), weight(static_cast<std::size_t>(width)),
      out(in.size(), kNan);
  for (auto* list : {&in, &weight}) {
    for (float& value : *list) value = normal(generator);
  }
  backend_->rms_norm(in.data(), weight.data(), 1e-6f, tokens, width, out.data());
  std::vector<float> row(static_cast<std::size_t>(width));
  for (std::int64_t t = 0; t < tokens; ++t) {
    backend_->rms_norm(in.data() + t * width, weight.data(), 1e-6f, 1, width, row.data());
    for (std::int64_t i = 0; i < width; ++i)
      ASSERT_EQ(row[static_cast<std::size_t>(i)], out[static_cast<std::size_t>(t * width + i)]);
  }
}

}  // namespace
}  // namespace facet
