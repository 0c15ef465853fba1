// How calibration sequences are put side by side.
#include "gemma4/calibration_batch.h"

#include <gtest/gtest.h>

#include <random>

namespace facet::gemma4 {
namespace {

TEST(CalibrationBatch, HoldsEverySequenceInOrder) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  for (const std::int64_t most : {1, 100, 1000, 100000}) {
    std::vector<std::vector<std::int32_t>> sequences(1 + random() % 300);
    for (auto& sequence : sequences) {
      sequence.resize(1 + random() % (random() % 4 == 0 ? 1500 : 40));
      for (std::int32_t& id : sequence) id = static_cast<std::int32_t>(random() % 1000);
    }
    std::size_t next = 0;
    for (const CalibrationBatch& batch : make_batches(sequences, most)) {
      ASSERT_EQ(batch.first, next);
      ASSERT_GE(batch.sequences(), 1u);
      EXPECT_LE(batch.sequences(), 64u);
      if (batch.sequences() > 1) {
        EXPECT_LE(batch.tokens(), most);
      }
      std::int64_t longest = 0;
      for (std::size_t i = 0; i < batch.sequences(); ++i, ++next) {
        const std::vector<std::int32_t>& expected = sequences[next];
        longest = std::max(longest, static_cast<std::int64_t>(expected.size()));
        ASSERT_EQ(batch.token_begin[i + 1] - batch.token_begin[i], static_cast<std::int32_t>(expected.size()));
        for (std::size_t token = 0; token < expected.size(); ++token) {
          const std::size_t row = static_cast<std::size_t>(batch.token_begin[i]) + token;
          ASSERT_EQ(batch.ids[row], expected[token]);
          ASSERT_EQ(batch.positions[row], static_cast<std::int32_t>(token));
          ASSERT_EQ(batch.sequence[row], static_cast<std::int32_t>(i));
        }
      }
      EXPECT_EQ(batch.longest, longest);
    }
    EXPECT_EQ(next, sequences.size());
  }
}

// A batch ends only where the next sequence does not fit.
TEST(CalibrationBatch, IsAsFullAsItMayBe) {
  const std::vector<std::vector<std::int32_t>> sequences(200, std::vector<std::int32_t>(10, 3));
  const auto by_tokens = make_batches(sequences, 105), by_count = make_batches(sequences, 10000);
  ASSERT_EQ(by_tokens.size(), 20u);
  EXPECT_EQ(by_tokens.front().tokens(), 100);
  ASSERT_EQ(by_count.size(), 4u);
  EXPECT_EQ(by_count.front().sequences(), 64u);
  EXPECT_EQ(by_count.back().sequences(), 8u);
}

}  // namespace
}  // namespace facet::gemma4
