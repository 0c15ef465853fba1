// Tokens that the device samples, against the distribution in double: the token must be one that the filters keep, and
// the number that decides must lie in its place.
#include <algorithm>
#include <numeric>

#include "cuda_backend_fixture.h"

namespace facet {
namespace {

// Weights are exp of a float: 88 times its rounding at most, and sums of 2^18 of them are exact.
constexpr double kSlack = 1e-5;

using Logits = std::vector<float>;

// Ids by probability, the lowest first among equals.
std::vector<std::int32_t> by_probability(const Logits& logits) {
  std::vector<std::int32_t> ids;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (logits[i] > -std::numeric_limits<float>::infinity()) ids.push_back(static_cast<std::int32_t>(i));
  }
  std::sort(ids.begin(), ids.end(), [&](std::int32_t a, std::int32_t b) {
    const float x = logits[static_cast<std::size_t>(a)], y = logits[static_cast<std::size_t>(b)];
    return x != y ? x > y : a < b;
  });
  return ids;
}

class Reference {
 public:
  Reference(const Logits& logits, const RowSampling& how) : logits_(logits), how_(how), ids_(by_probability(logits)) {
    if (how.top_k > 0) ids_.resize(std::min(ids_.size(), static_cast<std::size_t>(how.top_k)));
    double total = 0;
    for (const std::int32_t id : ids_) total += weight(id);
    double sum = 0;
    while (mass_ < ids_.size() && sum < how.top_p * total) sum += weight(ids_[mass_++]);
    if (how.top_p >= 1) mass_ = ids_.size();
  }

  // A sum that all but reaches the wanted mass may be cut one token before or after.
  testing::AssertionResult allows(std::int32_t id) const {
    for (const std::size_t count : {mass_, std::max<std::size_t>(mass_, 2) - 1, mass_ + 1}) {
      if (how_.top_p >= 1 && count != mass_) continue;
      if (lies_in_place(id, std::min(count, ids_.size()))) return testing::AssertionSuccess();
    }
    return testing::AssertionFailure() << "token " << id << " for uniform " << how_.uniform << ", temperature "
                                       << how_.temperature << ", top-k " << how_.top_k << ", top-p " << how_.top_p
                                       << ", min-p " << how_.min_p << ", " << mass_ << " tokens kept";
  }

 private:
  double weight(std::int32_t id) const {
    const double top = logits_[static_cast<std::size_t>(ids_.front())];
    return std::exp((static_cast<double>(logits_[static_cast<std::size_t>(id)]) - top) / how_.temperature);
  }
  bool lies_in_place(std::int32_t id, std::size_t count) const {
    std::vector<std::int32_t> kept(ids_.begin(), ids_.begin() + static_cast<std::ptrdiff_t>(count));
    std::sort(kept.begin(), kept.end());
    double total = 0, before = -1, after = -1;
    for (const std::int32_t each : kept) {
      if (weight(each) < how_.min_p * (1 - kSlack)) continue;
      if (each == id) before = total;
      total += weight(each);
      if (each == id) after = total;
    }
    return after >= 0 && how_.uniform >= before / total - kSlack && how_.uniform <= after / total + kSlack;
  }

  const Logits& logits_;
  RowSampling how_;
  std::vector<std::int32_t> ids_;
  std::size_t mass_ = 0;
};

class CudaSampleTest : public CudaBackendTest {
 protected:
  std::vector<std::int32_t> sample(const Logits& logits, std::int64_t vocabulary, const std::vector<RowSampling>& how,
                                   float cap = 0) {
    auto* ids = on_gpu(std::vector<std::int32_t>(how.size(), -7));
    gpu_->sample(on_gpu(logits), static_cast<std::int64_t>(how.size()), vocabulary, cap, on_gpu(how), ids);
    return back(ids, how.size());
  }
  double uniform() { return std::uniform_real_distribution<double>(0, 1)(random_); }

  // One row of logits under many settings.
  void check(const Logits& row) {
    std::vector<RowSampling> how;
    for (const double temperature : {0.3, 1.0, 2.5}) {
      for (const std::int64_t top_k : {0, 1, 7, 64, 5000}) {
        for (const double top_p : {1.0, 0.95, 0.4, 1e-6}) {
          for (const double min_p : {0.0, 0.05}) how.push_back({temperature, top_k, top_p, min_p, uniform()});
        }
      }
    }
    Logits logits;
    for (std::size_t i = 0; i < how.size(); ++i) logits.insert(logits.end(), row.begin(), row.end());
    const std::vector<std::int32_t> ids = sample(logits, static_cast<std::int64_t>(row.size()), how);
    for (std::size_t i = 0; i < how.size(); ++i) EXPECT_TRUE(Reference(row, how[i]).allows(ids[i]));
    EXPECT_EQ(sample(logits, static_cast<std::int64_t>(row.size()), how), ids) << "the second time";
  }
};

TEST_F(CudaSampleTest, TokensLieWhereTheNumberPoints) {
  for (const std::size_t vocabulary : {5u, 1000u, 26'214u}) {
    for (const float spread : {0.5f, 4.0f, 20.0f}) check(numbers(vocabulary, spread));
  }
  check(numbers(262'144, 3.0f));
}

// Whole logits: cuts go through ties, of which the lowest ids stay.
TEST_F(CudaSampleTest, TiesAreCutById) {
  Logits row = numbers(20'000, 3.0f);
  for (float& logit : row) logit = std::round(logit);
  check(row);
  check(Logits(3000, 1.25f));
}

TEST_F(CudaSampleTest, ImpossibleTokensAndBadRows) {
  const float infinity = std::numeric_limits<float>::infinity();
  Logits row = numbers(4096, 2.0f);
  for (std::size_t i = 0; i < row.size(); ++i) {
    if (i % 3 != 0) row[i] = -infinity;
  }
  check(row);
  Logits bad = numbers(4 * 4096, 2.0f);
  bad[17] = kNan;
  bad[4096 + 4095] = infinity;
  std::fill_n(bad.begin() + 2 * 4096, 4096, -infinity);
  const RowSampling how{1.0, 50, 0.9, 0.0, 0.5};
  const std::vector<std::int32_t> ids = sample(bad, 4096, {how, how, how, {0, 0, 1, 0, 0}});
  const Logits last(bad.end() - 4096, bad.end());
  EXPECT_EQ(ids, (std::vector<std::int32_t>{-1, -1, -1, most_probable(last)}));
}

// A cap on the way is the same as soft_cap() before, for every kind of row.
TEST_F(CudaSampleTest, CapsOnTheWay) {
  constexpr std::int64_t kVocabulary = 26'214;
  constexpr float kCap = 30;
  const float infinity = std::numeric_limits<float>::infinity();
  std::vector<RowSampling> how;
  for (const double temperature : {0.0, 0.7, 3.0}) {
    for (const std::int64_t top_k : {0, 50}) {
      for (const double top_p : {1.0, 0.9}) how.push_back({temperature, top_k, top_p, 0.01, uniform()});
    }
  }
  const auto rows = static_cast<std::int64_t>(how.size());
  Logits logits = numbers(how.size() * kVocabulary, 20);
  const auto row = [&](std::int64_t r) { return logits.data() + r * kVocabulary; };
  row(1)[kVocabulary - 1] = kNan;
  row(2)[7] = row(5)[7] = infinity;
  row(6)[100] = kNan;
  std::fill_n(row(9), kVocabulary, -infinity);
  const std::vector<std::int32_t> ids = sample(logits, kVocabulary, how, kCap);
  EXPECT_EQ(ids[1], -1);
  EXPECT_EQ(ids[2], 7);
  EXPECT_EQ(ids[6], -1);
  EXPECT_GE(ids[9], 0);
  auto* capped = on_gpu(logits);
  gpu_->soft_cap(capped, rows * kVocabulary, kCap);
  EXPECT_EQ(sample(back(capped, logits.size()), kVocabulary, how), ids);
}

TEST_F(CudaSampleTest, ExtremeTemperaturesAndNumbers) {
  const Logits row = numbers(10'000, 5.0f);
  Logits logits = row;
  logits.insert(logits.end(), row.begin(), row.end());
  logits.insert(logits.end(), row.begin(), row.end());
  const std::vector<RowSampling> how = {
      {1e-300, 0, 1, 0, 0.7}, {100, 0, 1, 0, 0}, {1, 0, 1, 0, std::nextafter(1.0, 0.0)}};
  const std::vector<std::int32_t> ids = sample(logits, 10'000, how);
  EXPECT_EQ(ids[0], most_probable(row));
  for (std::size_t i = 1; i < how.size(); ++i) EXPECT_TRUE(Reference(row, how[i]).allows(ids[i]));
}

}  // namespace
}  // namespace facet
