// Prepared attention in the shared form of the cache: the same values, the channels of keys that turn, and queries that
// bring the weights of the others.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "facet/backend/cpu_backend.h"
#include "facet/plugin/host_services.h"
#include "facet/sdk/kv_rows.h"

namespace facet {
namespace {

constexpr std::int64_t kQueryHeads = 4, kKvHeads = 2, kTokens = 3, kRows = 4, kBlocks = 3;
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct Form {
  std::int64_t dim, live;
  abi::KvOrder order;
  abi::DType element;
};

// What prepare_attention() writes for one step in one form; everything else stays NaN.
struct Prepared {
  abi::KvView view{};
  std::vector<float> pool, key_scales, value_scales, queries;
  std::vector<std::int32_t> table{2, -1, 0, 1};

  // Element d of the key or the value of a token's head, times its scale.
  double at(const void* base, const std::vector<float>& scales, std::int64_t sequence, std::int64_t position,
            std::int64_t head, std::int64_t d) const {
    const sdk::KvRun run = sdk::kv_run(view, sequence, position, position + 1);
    const std::int64_t offset = run.offset + head * view.head_stride + d;
    if (view.layout.element == abi::DType::f32) return static_cast<const float*>(base)[offset];
    if (view.layout.element == abi::DType::bf16)
      return sdk::bf16_to_float(static_cast<const std::uint16_t*>(base)[offset]);
    const std::int64_t scale = run.scale_offset + head * view.scale_head_stride;
    return static_cast<double>(static_cast<const std::int8_t*>(base)[offset]) *
           static_cast<double>(scales[static_cast<std::size_t>(scale)]);
  }
};

class SharedForm : public testing::Test {
 protected:
  Prepared prepare(const Form& form, bool shared) {
    Prepared made;
    abi::KvView& view = made.view;
    view.layout = {sizeof(abi::KvLayout),
                   abi::KvAddressing::paged,
                   form.order,
                   form.element,
                   form.element == abi::DType::i8 ? abi::KvScales::per_row_head : abi::KvScales::none,
                   kRows,
                   64};
    view.kv_heads = kKvHeads;
    view.head_dim = form.dim;
    view.key_channels = shared ? 2 * form.live : 0;
    const sdk::KvStrides strides =
        sdk::kv_strides(view.layout, kKvHeads, sdk::kv_row_width(view.head_dim, view.key_channels));
    // Four bytes an element are enough for every type.
    const std::int64_t elements = strides.block * kBlocks;
    made.pool.assign(static_cast<std::size_t>(2 * elements), kNan);
    made.key_scales.assign(static_cast<std::size_t>(strides.scale_block * kBlocks + 1), kNan);
    made.value_scales = made.key_scales;
    made.queries.assign(static_cast<std::size_t>(kTokens * kQueryHeads * form.dim), kNan);
    view.values = made.pool.data();
    view.keys =
        reinterpret_cast<char*>(made.pool.data()) + (shared ? form.dim : elements) * sdk::element_bytes(form.element);
    view.key_scales = made.key_scales.data();
    view.value_scales = made.value_scales.data();
    sdk::set_strides(view, strides);
    view.block_table = made.table.data();
    view.table_stride = 2;
    AttentionInput input;
    input.projections = projections_.data();
    input.stride = (kQueryHeads + kKvHeads) * form.dim;
    input.query_heads = kQueryHeads;
    input.kv_heads = kKvHeads;
    input.head_dim = form.dim;
    input.values_from_keys = true;
    input.query_norm = query_norm_.data();
    input.key_norm = key_norm_.data();
    input.epsilon = 1e-6f;
    input.rotary = {form.live, cosine_.data(), sine_.data()};
    input.positions = positions_.data();
    input.sequence = sequence_.data();
    input.tokens = kTokens;
    input.kv = &view;
    input.queries = made.queries.data();
    backend_->prepare_attention(input);
    return made;
  }

  void fill(const Form& form) {
    std::mt19937 random(std::random_device{}());
    std::normal_distribution<float> normal;
    const auto size = [](std::int64_t count) { return static_cast<std::size_t>(count); };
    projections_.resize(size(kTokens * (kQueryHeads + kKvHeads) * form.dim));
    query_norm_.resize(size(form.dim));
    key_norm_.resize(size(form.dim));
    cosine_.resize(size(kTokens * form.live));
    sine_.resize(cosine_.size());
    for (auto* list : {&projections_, &query_norm_, &key_norm_}) {
      for (float& value : *list) value = normal(random);
    }
    for (std::size_t i = 0; i < cosine_.size(); ++i) {
      const float angle = 3 * normal(random);
      cosine_[i] = std::cos(angle);
      sine_[i] = std::sin(angle);
    }
  }

  HostServices services_{2, "auto"};
  std::unique_ptr<Backend> backend_ = make_cpu_backend(services_);
  std::vector<float> projections_, query_norm_, key_norm_, cosine_, sine_;
  std::vector<std::int32_t> positions_{1, 0, 7}, sequence_{0, 1, 1};
};

TEST_F(SharedForm, HoldsWhatTheFullFormHolds) {
  for (const abi::DType element : {abi::DType::f32, abi::DType::bf16, abi::DType::i8}) {
    for (const abi::KvOrder order : {abi::KvOrder::token_major, abi::KvOrder::head_major}) {
      for (const auto& [dim, live] : {std::pair{32, 4}, {128, 16}, {24, 5}}) {
        const Form form{dim, live, order, element};
        fill(form);
        const Prepared full = prepare(form, false), shared = prepare(form, true);
        const std::int64_t half = form.dim / 2;
        const auto turns = [&](std::int64_t d) { return d % half < form.live; };
        for (std::size_t i = 0; i < full.queries.size(); ++i) {
          const auto d = static_cast<std::int64_t>(i) % form.dim;
          const float weight = turns(d) ? 1.0f : key_norm_[static_cast<std::size_t>(d)];
          ASSERT_EQ(shared.queries[i], full.queries[i] * weight) << "query element " << i;
        }
        for (std::int64_t t = 0; t < kTokens; ++t) {
          const auto sequence = sequence_[static_cast<std::size_t>(t)],
                     position = positions_[static_cast<std::size_t>(t)];
          for (std::int64_t head = 0; head < kKvHeads; ++head) {
            const auto read = [&](const Prepared& from, bool key, std::int64_t d) {
              return from.at(key ? from.view.keys : from.view.values, key ? from.key_scales : from.value_scales,
                             sequence, position, head, d);
            };
            double largest = 0;
            for (std::int64_t d = 0; d < form.dim; ++d) {
              ASSERT_EQ(read(shared, false, d), read(full, false, d)) << "value " << d;
              largest = std::max(largest, std::abs(read(full, true, d)));
            }
            for (std::int64_t d = 0; d < 2 * form.live; ++d) {
              const std::int64_t channel = d < form.live ? d : half + d - form.live;
              // Codes have the scale of fewer channels; both lie within half a step of the exact key.
              const double allowed = element == abi::DType::i8 ? largest / 127 * 1.02 : 0.0;
              ASSERT_NEAR(read(shared, true, d), read(full, true, channel), allowed) << "key " << d;
            }
          }
        }
        // Rows of three tokens were written, and nothing else.
        const auto* bytes = reinterpret_cast<const unsigned char*>(shared.pool.data());
        const std::vector<float> clean(shared.pool.size(), kNan);
        const auto* before = reinterpret_cast<const unsigned char*>(clean.data());
        std::int64_t changed = 0;
        for (std::size_t i = 0; i < shared.pool.size() * sizeof(float); ++i) changed += bytes[i] != before[i];
        EXPECT_LE(changed, kTokens * kKvHeads * (form.dim + 2 * form.live) * sdk::element_bytes(element));
      }
    }
  }
}

}  // namespace
}  // namespace facet
