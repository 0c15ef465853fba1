// Attention plugins against exact results on random inputs, over shapes, layouts, element types and instruction sets.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "world.h"

namespace facet::test {
namespace {

using abi::DType;
using abi::KvAddressing;
using abi::KvOrder;

constexpr KvAddressing kAddressings[] = {KvAddressing::contiguous, KvAddressing::ring, KvAddressing::paged};
constexpr std::int64_t kGroups[] = {2, 8, 16, 1};
constexpr KvOrder kOrders[] = {KvOrder::token_major, KvOrder::head_major};
constexpr DType kElements[] = {DType::f32, DType::bf16, DType::i8};

void expect_near_reference(const World& world, const AttentionPlugin& plugin, const std::string& what) {
  const std::vector<float> result = world.run(plugin);
  std::vector<double> expected;
  std::vector<double> tolerance;
  world.reference(expected, tolerance);
  ASSERT_EQ(result.size(), expected.size());
  for (std::size_t i = 0; i < result.size(); ++i) {
    const double error = std::abs(static_cast<double>(result[i]) - expected[i]);
    ASSERT_TRUE(error <= tolerance[i]) << what << ": element " << i << " is " << result[i] << ", right is "
                                       << expected[i] << ", tolerance " << tolerance[i];
  }
}

// Scale that keeps scores in about [-4, 4] for queries and keys uniform in [-1, 1].
float fitting_scale(std::int64_t head_dim) {
  return static_cast<float>(4.0 / std::sqrt(static_cast<double>(head_dim)));
}

class Plugins : public testing::TestWithParam<std::tuple<const char*, IsaLevel>> {
 protected:
  const char* stem() const { return std::get<0>(GetParam()); }
  std::uint64_t features() const { return std::get<1>(GetParam()).features; }
};

TEST_P(Plugins, EveryLayoutOrderAndElement) {
  const TestHost host(2, features());
  const AttentionPlugin plugin(stem(), host);
  for (const KvAddressing addressing : kAddressings) {
    for (const KvOrder order : kOrders) {
      for (const DType element : kElements) {
        for (const std::int64_t window : {0, 8}) {
          const Shape shape{4, 2, 72, window, fitting_scale(72)};
          const Storage storage{addressing, order, element, 16, 2};
          const std::vector<Piece> pieces{{1, 70, 1}, {2, 0, 21}, {3, 0, 0}, {4, 9, 5}};
          const World world(shape, storage, pieces, random_content());
          expect_near_reference(world, plugin, describe(shape, storage, pieces));
        }
      }
    }
  }
}

TEST_P(Plugins, EveryHeadDim) {
  const TestHost host(1, features());
  const AttentionPlugin plugin(stem(), host);
  for (const std::int64_t dim : {8, 16, 24, 40, 64, 96, 104, 128, 184, 256, 320, 504, 512}) {
    for (const DType element : kElements) {
      const Shape shape{4, 1, dim, 0, fitting_scale(dim)};
      const Storage storage{KvAddressing::paged, KvOrder::head_major, element};
      const std::vector<Piece> pieces{{static_cast<std::uint64_t>(dim), 30, 5}, {6, 66, 1}};
      const World world(shape, storage, pieces, random_content());
      expect_near_reference(world, plugin, describe(shape, storage, pieces));
    }
  }
}

// Keys that have only some channels, and the value for the others: every layout, any number of channels.
TEST_P(Plugins, SharedForm) {
  const TestHost host(2, features());
  const AttentionPlugin plugin(stem(), host);
  for (const auto& [dim, channels] : {std::pair{128, 32}, {512, 128}, {64, 16}, {96, 80}, {48, 16}, {32, 16}}) {
    for (const KvAddressing addressing : kAddressings) {
      for (const KvOrder order : kOrders) {
        for (const DType element : kElements) {
          const Shape shape{dim > 128 ? 16 : 6, dim > 128 ? 1 : 2,  dim,
                            dim == 96 ? 9 : 0,  fitting_scale(dim), channels};
          const Storage storage{addressing, order, element, 16, 2};
          const std::vector<Piece> pieces{{1, 70, 1}, {2, 0, 21}, {3, 0, 0}, {4, 9, 5}};
          const World world(shape, storage, pieces, random_content());
          expect_near_reference(world, plugin, describe(shape, storage, pieces));
        }
      }
    }
  }
}

// Contexts 1..40 with every window and group, as one prefill and as a decode step.
TEST_P(Plugins, LengthSweep) {
  const TestHost host(2, features());
  const AttentionPlugin plugin(stem(), host);
  for (std::int64_t length = 1; length <= 40; ++length) {
    for (const std::int64_t window : {0, 4, 8, 256}) {
      const std::int64_t group = kGroups[length % 4];
      const Shape shape{group, 1, 64, window, fitting_scale(64)};
      const Storage storage{kAddressings[length % 3], kOrders[length % 2], DType::bf16};
      const std::vector<Piece> pieces{{11, length - 1, 1}, {12, 0, length}};
      const World world(shape, storage, pieces, random_content());
      expect_near_reference(world, plugin, describe(shape, storage, pieces));
    }
  }
}

TEST_P(Plugins, LongContexts) {
  const TestHost host(2, features());
  const AttentionPlugin plugin(stem(), host);
  for (const std::int64_t window : {0, 256, 1024}) {
    for (const std::int64_t context : {255, 1023, 1024, 1025, 1300}) {
      const Shape shape{4, 1, 64, window, fitting_scale(64)};
      const Storage storage{window > 0 ? KvAddressing::ring : KvAddressing::paged, KvOrder::head_major, DType::bf16};
      const std::vector<Piece> pieces{{21, context - 1, 1}, {22, context - 7, 7}, {23, 2 * context + 900, 2}};
      const World world(shape, storage, pieces, random_content());
      expect_near_reference(world, plugin, describe(shape, storage, pieces));
    }
  }
}

TEST_P(Plugins, RandomBatches) {
  constexpr std::uint64_t kSeed = 20240607;
  std::mt19937_64 random(kSeed);
  const auto pick = [&](std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(random);
  };
  const TestHost host(3, features());
  for (int round = 0; round < 40; ++round) {
    const AttentionPlugin plugin(stem(), host,
                                 {{"query_chunk", pick(1, 96)}, {"key_block", std::int64_t{16} << pick(0, 4)}});
    const std::int64_t kv_heads = pick(1, 3);
    const std::int64_t dim = 8 * pick(1, 20);
    Shape shape{kv_heads * pick(1, 5), kv_heads, dim, pick(0, 2) * pick(1, 60), fitting_scale(dim)};
    if (dim % 16 == 0 && dim > 16 && pick(0, 1) == 1) shape.key_channels = 16 * pick(1, dim / 16 - 1);
    const Storage storage{kAddressings[pick(0, 2)], kOrders[pick(0, 1)], kElements[pick(0, 2)],
                          static_cast<std::uint32_t>(pick(1, 33)), pick(0, 9)};
    std::vector<Piece> pieces;
    for (std::int64_t i = pick(1, 6); i > 0; --i) pieces.push_back({random(), pick(0, 1) * pick(0, 120), pick(0, 40)});
    const World world(shape, storage, pieces, random_content());
    expect_near_reference(
        world, plugin,
        "seed " + std::to_string(kSeed) + " round " + std::to_string(round) + ": " + describe(shape, storage, pieces));
  }
}

std::vector<std::tuple<const char*, IsaLevel>> every_plugin() {
  std::vector<std::tuple<const char*, IsaLevel>> all{{"attention_reference", {"generic", 0}}};
  for (const IsaLevel& level : isa_levels()) all.emplace_back("attention_flash", level);
  return all;
}

INSTANTIATE_TEST_SUITE_P(Attention, Plugins, testing::ValuesIn(every_plugin()), [](const auto& entry) {
  return std::string(std::get<0>(entry.param)) + "_" + std::get<1>(entry.param).name;
});

}  // namespace
}  // namespace facet::test
