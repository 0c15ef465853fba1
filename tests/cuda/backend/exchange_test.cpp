// Copies between host and device: every size and address arrives, in the order of the calls.
#include <algorithm>
#include <cstring>

#include "cuda_backend_fixture.h"

namespace facet {
namespace {

class ExchangeTest : public CudaBackendTest {
 protected:
  std::vector<std::uint8_t> bytes(std::size_t count) {
    std::vector<std::uint8_t> values(count);
    for (std::uint8_t& value : values) value = static_cast<std::uint8_t>(random_());
    return values;
  }
};

TEST_F(ExchangeTest, UploadsOfEverySizeAndAddressArriveWhole) {
  constexpr std::size_t kSlot = std::size_t{1} << 20;  // above it uploads take another way
  constexpr std::size_t kGuard = 64;
  for (const std::size_t count :
       {std::size_t{0}, std::size_t{1}, std::size_t{15}, std::size_t{16}, std::size_t{17}, std::size_t{4099},
        std::size_t{540672}, kSlot - 1, kSlot, kSlot + 1, 17 * kSlot + 5}) {
    for (const std::size_t shift : {std::size_t{0}, std::size_t{3}, std::size_t{16}}) {
      std::vector<std::uint8_t> right = bytes(count + shift + kGuard);
      auto* target = on_gpu(right);
      std::vector<std::uint8_t> sent = bytes(count);
      gpu_->upload(target + shift, sent.data(), count);
      std::copy(sent.begin(), sent.end(), right.begin() + static_cast<std::ptrdiff_t>(shift));
      std::fill(sent.begin(), sent.end(), std::uint8_t{0});  // the host memory is the caller's again
      EXPECT_EQ(back(target, right.size()), right) << count << " bytes at " << shift;
      buffers_.clear();
    }
  }
}

// More uploads at once than there are slots, all on their way before the first is looked at.
TEST_F(ExchangeTest, ManyUploadsKeepTheirOrder) {
  auto* target = on_gpu(std::vector<std::int32_t>(64, -1));
  auto* one = on_gpu(std::vector<std::int32_t>{-1});
  for (std::int32_t i = 0; i < 64; ++i) {
    gpu_->upload(target + i, &i, sizeof i);
    gpu_->upload(one, &i, sizeof i);
  }
  std::vector<std::int32_t> right(64);
  for (std::int32_t i = 0; i < 64; ++i) right[static_cast<std::size_t>(i)] = i;
  EXPECT_EQ(back(target, 64), right);
  EXPECT_EQ(back(one, 1).front(), 63);
}

// What is asked for is what the work before it left, whatever is queued between asking and reading.
TEST_F(ExchangeTest, AnAnswerHoldsWhatWasThereWhenItWasAskedFor) {
  constexpr std::int64_t kWidth = 300;
  const auto size = static_cast<std::size_t>(kWidth) * sizeof(float);
  const std::vector<float> first = numbers(kWidth), second = numbers(kWidth);
  auto* source = on_gpu(first);
  auto* other = on_gpu(second);
  auto* row = on_gpu(std::vector<std::int32_t>{0});
  const auto copy = [&] { gpu_->gather_rows(other, row, 1, kWidth, source); };
  const auto answer = [&] {
    const auto* values = static_cast<const float*>(gpu_->end_read_back());
    return std::vector<float>(values, values + kWidth);
  };
  const auto restore = [&] { gpu_->upload(source, first.data(), size); };

  gpu_->begin_read_back(source, size);
  EXPECT_EQ(answer(), first) << "nothing queued between";
  gpu_->begin_read_back(source, size);
  copy();
  EXPECT_EQ(answer(), first) << "an operation between";
  EXPECT_EQ(back(source, kWidth), second);

  restore();
  gpu_->begin_read_back(source, size);
  gpu_->upload(source, second.data(), size);
  EXPECT_EQ(answer(), first) << "an upload over what was asked for";
  EXPECT_EQ(back(source, kWidth), second);

  restore();
  for (int round = 0; round < 3; ++round) {
    gpu_->begin_read_back(source, size);
    gpu_->upload(other, second.data(), size);
    gpu_->run_recorded(this, 1, copy);
    EXPECT_EQ(answer(), round == 0 ? first : second) << "an upload elsewhere and a recorded step between";
  }
  restore();
  gpu_->begin_read_back(source, size);
  gpu_->run_recorded(this, 1, copy);
  EXPECT_EQ(back(source, kWidth), second);
  EXPECT_EQ(answer(), first) << "another read between";
}

}  // namespace
}  // namespace facet
