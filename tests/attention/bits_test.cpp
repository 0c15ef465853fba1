// The bits of a sequence depend on nothing but the sequence: not on chunks, batch, layout, ring, pages or threads.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "world.h"

namespace facet::test {
namespace {

using abi::DType;
using abi::KvAddressing;
using abi::KvOrder;

struct Case {
  const char* stem;
  IsaLevel level;
  DType element;
};

class Bits : public testing::TestWithParam<Case> {
 protected:
  std::uint64_t features() const { return GetParam().level.features; }
  Storage storage(KvAddressing addressing, KvOrder order, std::uint32_t block_rows = 16,
                  std::int64_t spare_rows = 0) const {
    return {addressing, order, GetParam().element, block_rows, spare_rows};
  }
};

// Rows [from, to) of the only sequence, computed in pieces of `chunk` tokens.
std::vector<float> in_chunks(const AttentionPlugin& plugin, const Shape& shape, const Storage& storage,
                             std::uint64_t seed, std::int64_t from, std::int64_t to, std::int64_t chunk) {
  std::vector<float> rows;
  for (std::int64_t first = from; first < to; first += chunk) {
    const World world(shape, storage, {{seed, first, std::min(chunk, to - first)}}, random_content());
    const std::vector<float> piece = world.run(plugin);
    rows.insert(rows.end(), piece.begin(), piece.end());
  }
  return rows;
}

testing::AssertionResult same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return testing::AssertionFailure() << a.size() << " and " << b.size() << " numbers";
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (std::bit_cast<std::uint32_t>(a[i]) != std::bit_cast<std::uint32_t>(b[i])) {
      return testing::AssertionFailure() << "element " << i << ": " << a[i] << " and " << b[i];
    }
  }
  return testing::AssertionSuccess();
}

TEST_P(Bits, ChunksAndLayouts) {
  const TestHost host(2, features());
  const AttentionPlugin plugin(GetParam().stem, host);
  for (const std::int64_t group : {2, 8}) {
    for (const std::int64_t window : {0, 8, 50}) {
      const Shape shape{group, 1, 72, window, 0.5f};
      const std::vector<float> whole =
          in_chunks(plugin, shape, storage(KvAddressing::contiguous, KvOrder::token_major), 51, 0, 130, 130);
      for (const std::int64_t chunk : {1, 3, 7, 33, 64, 100}) {
        EXPECT_TRUE(same_bits(whole, in_chunks(plugin, shape, storage(KvAddressing::ring, KvOrder::head_major, 16, 3),
                                               51, 0, 130, chunk)))
            << "ring, chunk " << chunk << " window " << window;
        EXPECT_TRUE(same_bits(
            whole, in_chunks(plugin, shape, storage(KvAddressing::paged, KvOrder::token_major, 5), 51, 0, 130, chunk)))
            << "paged, chunk " << chunk << " window " << window;
      }
    }
  }
}

// Around and beyond the parts of 1,024 keys, where decode is split over workers and prefill is not.
TEST_P(Bits, LongContextsAndThreads) {
  const Shape global{16, 1, 64, 0, 0.5f};
  const Shape sliding{4, 2, 64, 1024, 0.5f};
  for (const Shape& shape : {global, sliding}) {
    const TestHost one(1, features());
    const AttentionPlugin plugin(GetParam().stem, one);
    const std::vector<float> alone =
        in_chunks(plugin, shape, storage(KvAddressing::contiguous, KvOrder::token_major), 61, 2043, 2055, 12);
    for (const std::uint32_t workers : {2u, 7u}) {
      const TestHost many(workers, features());
      for (const std::int64_t query_chunk : {1, 16, 64}) {
        const AttentionPlugin other(GetParam().stem, many, {{"query_chunk", query_chunk}});
        for (const std::int64_t chunk : {1, 5, 12}) {
          EXPECT_TRUE(same_bits(alone, in_chunks(other, shape, storage(KvAddressing::paged, KvOrder::head_major, 48),
                                                 61, 2043, 2055, chunk)))
              << workers << " workers, query_chunk " << query_chunk << ", chunk " << chunk;
        }
      }
    }
  }
}

TEST_P(Bits, OtherSequencesOfTheBatch) {
  const TestHost host(2, features());
  const AttentionPlugin plugin(GetParam().stem, host);
  const Shape shape{4, 2, 64, 20, 0.5f};
  const Storage paged = storage(KvAddressing::paged, KvOrder::token_major, 7);
  const std::vector<Piece> pieces{{71, 33, 1}, {72, 0, 40}, {73, 5, 0}, {74, 1500, 1}, {75, 64, 17}};
  const World together(shape, paged, pieces, random_content());
  const std::vector<float> batch = together.run(plugin);
  std::vector<float> alone;
  for (const Piece& piece : pieces) {
    const World world(shape, paged, {piece}, random_content());
    const std::vector<float> rows = world.run(plugin);
    alone.insert(alone.end(), rows.begin(), rows.end());
  }
  EXPECT_TRUE(same_bits(batch, alone));
  EXPECT_TRUE(same_bits(batch, together.run(plugin))) << "second run";
}

// A value that one query may not see cannot leak into its row, not even as infinity times a zero weight.
TEST_P(Bits, UnseenInfinitiesStayUnseen) {
  if (GetParam().element == DType::i8) GTEST_SKIP() << "int8 codes hold no infinity";
  const TestHost host(1, features());
  const AttentionPlugin plugin(GetParam().stem, host);
  const Shape shape{2, 1, 64, 0, 0.5f};
  Content content = random_content();
  const auto finite = content.value;
  content.value = [finite](std::uint64_t seed, std::int64_t position, std::int64_t head, std::int64_t d) {
    return position == 9 ? HUGE_VAL : finite(seed, position, head, d);
  };
  const Storage contiguous = storage(KvAddressing::contiguous, KvOrder::token_major);
  const World poisoned(shape, contiguous, {{81, 0, 12}}, content);
  const World healthy(shape, contiguous, {{81, 0, 9}}, random_content());
  std::vector<float> rows = poisoned.run(plugin);
  rows.resize(9 * 128);
  EXPECT_TRUE(same_bits(rows, healthy.run(plugin)));
}

std::vector<Case> every_case() {
  std::vector<Case> all;
  for (const DType element : {DType::f32, DType::bf16, DType::i8}) {
    all.push_back({"attention_reference", {"generic", 0}, element});
    for (const IsaLevel& level : isa_levels()) all.push_back({"attention_flash", level, element});
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Attention, Bits, testing::ValuesIn(every_case()), [](const auto& entry) {
  const char* element = entry.param.element == DType::f32 ? "f32" : entry.param.element == DType::bf16 ? "bf16" : "i8";
  return std::string(entry.param.stem) + "_" + entry.param.level.name + "_" + element;
});

}  // namespace
}  // namespace facet::test
