// The most probable token of every row, with and without a soft cap: against the CPU's choice, and against the choice
// among the values that soft_cap() itself leaves on the device.
#include <algorithm>

#include "cuda_backend_fixture.h"

namespace facet {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kCap = 30;

class CudaArgmaxTest : public CudaBackendTest {
 protected:
  // A row that begins as `value` everywhere.
  float* add_row(float value) {
    logits_.insert(logits_.end(), static_cast<std::size_t>(vocabulary_), value);
    ++rows_;
    return logits_.data() + (rows_ - 1) * vocabulary_;
  }
  float* add_random_row(float spread) {
    const std::vector<float> values = numbers(static_cast<std::size_t>(vocabulary_), spread);
    return std::copy(values.begin(), values.end(), add_row(0)) - vocabulary_;
  }
  void begin(std::int64_t vocabulary) {
    vocabulary_ = vocabulary;
    rows_ = 0;
    logits_.clear();
  }
  std::vector<std::int32_t> on_cpu(float cap) {
    std::vector<std::int32_t> ids(static_cast<std::size_t>(rows_), -7);
    cpu_->argmax(logits_.data(), rows_, vocabulary_, cap, ids.data());
    return ids;
  }
  std::vector<std::int32_t> on_device(const float* logits, float cap) {
    auto* ids = on_gpu(std::vector<std::int32_t>(static_cast<std::size_t>(rows_), -7));
    gpu_->argmax(logits, rows_, vocabulary_, cap, ids);
    return back(ids, static_cast<std::size_t>(rows_));
  }
  std::string what(float cap) const { return fmt::format("{} logits a row, cap {}", vocabulary_, cap); }

  // The same choice among what soft_cap() leaves, by the device and by the sampler's own scan.
  void expect_choice_of_capped_values(float cap) {
    float* device = on_gpu(logits_);
    const std::vector<std::int32_t> ids = on_device(device, cap);
    gpu_->soft_cap(device, rows_ * vocabulary_, cap);
    EXPECT_EQ(on_device(device, 0), ids) << what(cap);
    const std::vector<float> capped = back(device, logits_.size());
    for (std::int64_t row = 0; row < rows_; ++row) {
      EXPECT_EQ(ids[static_cast<std::size_t>(row)],
                most_probable({capped.data() + row * vocabulary_, static_cast<std::size_t>(vocabulary_)}))
          << what(cap) << ", row " << row;
    }
  }

  std::int64_t vocabulary_ = 0;
  std::int64_t rows_ = 0;
  std::vector<float> logits_;
};

TEST_F(CudaArgmaxTest, AsTheSampler) {
  struct Right {
    std::int64_t plain, capped;
  };
  for (const std::int64_t vocabulary : {5, 1000, 4097, 26'214, 262'144, 300'000}) {
    begin(vocabulary);
    const std::int64_t last = vocabulary - 1, middle = vocabulary / 2;
    std::vector<Right> right;
    float* row = add_random_row(5);
    row[middle] = row[last] = 1e6f;  // a tie: the lowest
    right.push_back({middle, middle});
    add_random_row(5)[middle] = kNan;
    right.push_back({-1, -1});
    add_random_row(5)[last] = kInfinity;  // which a cap makes a number
    right.push_back({-1, last});
    add_row(-kInfinity);
    right.push_back({-1, 0});
    row = add_row(-1);
    row[3] = -0.0f;
    row[4] = 0.0f;
    right.push_back({3, 3});
    add_random_row(5)[last] = 1e30f;
    right.push_back({last, last});
    add_row(-1e30f);
    right.push_back({0, 0});
    row = add_random_row(5);
    row[middle] = 400;  // the cap makes both 30
    row[last] = 500;
    right.push_back({last, middle});
    row = add_row(-kInfinity);
    row[last] = -50;
    right.push_back({last, last});
    row = add_row(-60);
    row[last] = -59;
    right.push_back({last, last});
    row = add_row(-kInfinity);
    row[1] = 20;
    row[last] = 20.01f;
    right.push_back({last, last});
    add_row(kNan);
    right.push_back({-1, -1});
    row = add_random_row(5);
    row[0] = kNan;
    row[last] = 1e6f;
    right.push_back({-1, -1});
    std::vector<std::int32_t> plain, capped;
    for (const Right& ids : right) {
      plain.push_back(static_cast<std::int32_t>(ids.plain));
      capped.push_back(static_cast<std::int32_t>(ids.capped));
    }
    const float* device = on_gpu(logits_);
    EXPECT_EQ(on_cpu(0), plain) << what(0);
    EXPECT_EQ(on_device(device, 0), plain) << what(0);
    EXPECT_EQ(on_cpu(kCap), capped) << what(kCap);
    EXPECT_EQ(on_device(device, kCap), capped) << what(kCap);
    EXPECT_EQ(back(device, static_cast<std::size_t>(vocabulary)),
              std::vector<float>(logits_.begin(), logits_.begin() + vocabulary));
  }
}

TEST_F(CudaArgmaxTest, RandomRowsAsTheCpu) {
  for (const std::int64_t vocabulary : {5, 1000, 26'214, 262'144}) {
    begin(vocabulary);
    for (int row = 0; row < 64; ++row) add_random_row(5);
    const float* device = on_gpu(logits_);
    for (const float cap : {0.0f, kCap}) EXPECT_EQ(on_device(device, cap), on_cpu(cap)) << what(cap);
  }
}

// Logits whose capped values are a rounding or none apart, all through the range of tanh.
TEST_F(CudaArgmaxTest, CrowdedValuesAsSoftCapLeavesThem) {
  for (const std::int64_t vocabulary : {70, 26'214, 262'144}) {
    for (const float cap : {kCap, 1e-3f, 1e5f}) {
      begin(vocabulary);
      for (const auto& [low, high] : {std::pair{1.3f, 1.5f},
                                      {2.0f, 10.0f},
                                      {8.5f, 9.5f},
                                      {-1.5f, -1.3f},
                                      {-10.0f, -2.0f},
                                      {-9.5f, -8.5f},
                                      {-0.01f, 0.01f},
                                      {0.5f, 0.56f},
                                      {-2.0f, 2.0f}}) {
        std::uniform_real_distribution<float> between(low * cap, high * cap);
        float* row = add_row(0);
        for (std::int64_t id = 0; id < vocabulary; ++id) row[id] = between(random_);
        // Crowded to a thousandth of that range, too: most are candidates then.
        float* close = add_row(0);
        for (std::int64_t id = 0; id < vocabulary; ++id) close[id] = high * cap - 1e-3f * std::abs(between(random_));
      }
      expect_choice_of_capped_values(cap);
    }
  }
}

}  // namespace
}  // namespace facet
