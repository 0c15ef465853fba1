// Second moments against sums in double, and inputs that must be refused.
#include <gmock/gmock.h>

#include <cmath>
#include <limits>

#include "random_layer.h"

namespace facet::quantizer {
namespace {

using testing::HasSubstr;

TEST(HessianTest, EqualsTheSumsInDouble) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  for (const std::int64_t inputs : {1, 7, 64, 130, 300}) {
    const RandomLayer layer(1, inputs, 700, seed);
    const Hessian hessian = layer.hessian();
    const std::vector<double> exact = layer.exact_hessian();
    ASSERT_EQ(hessian.rows(), 700);
    for (std::int64_t i = 0; i < inputs; ++i) {
      for (std::int64_t j = 0; j < inputs; ++j) {
        // Products are summed in float over 300 rows: each addition rounds by 2^-24 of a sum that never exceeds the sum
        // of magnitudes, which the diagonal bounds (Cauchy-Schwarz).
        const double bound = std::sqrt(exact[static_cast<std::size_t>(i * inputs + i)] *
                                       exact[static_cast<std::size_t>(j * inputs + j)]);
        EXPECT_NEAR(hessian.at(i, j), exact[static_cast<std::size_t>(i * inputs + j)], 300 * 0x1p-24 * bound);
      }
    }
  }
}

TEST(HessianTest, DoesNotDependOnThreads) {
  const RandomLayer layer(1, 300, 500, 11), other(1, 300, 500, 12);
  const Blas blas;
  Hessian alone(300, true), shared(300, true);
  alone.add(layer.x.data(), layer.rows, blas, {}, other.x.data());
  shared.add(layer.x.data(), layer.rows, blas, kThreads, other.x.data());
  for (std::int64_t i = 0; i < 300; ++i) {
    for (std::int64_t j = 0; j < 300; ++j) {
      ASSERT_EQ(alone.at(i, j), shared.at(i, j));
      ASSERT_EQ(alone.cross_at(i, j), shared.cross_at(i, j));
    }
  }
}

TEST(HessianTest, CrossSumsKnowTheOriginals) {
  const RandomLayer layer(1, 20, 200, 13), other(1, 20, 200, 14);
  const Blas blas;
  Hessian hessian(20, true);
  hessian.add(layer.x.data(), layer.rows, blas, {}, other.x.data());
  for (std::int64_t i = 0; i < 20; ++i) {
    for (std::int64_t j = 0; j < 20; ++j) {
      double sum = 0, magnitude = 0;
      for (std::size_t row = 0; row < 200; ++row) {
        const double change = static_cast<double>(other.x[row * 20 + static_cast<std::size_t>(i)]) -
                              layer.x[row * 20 + static_cast<std::size_t>(i)];
        const double product = change * layer.x[row * 20 + static_cast<std::size_t>(j)];
        sum += product;
        magnitude += std::abs(product);
      }
      EXPECT_NEAR(hessian.cross_at(i, j), 2 * sum / 200, 202 * 0x1p-24 * 2 * magnitude / 200);
    }
  }
}

TEST(HessianTest, RefusesWhatIsNotFiniteAndAddsNothing) {
  const Blas blas;
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                          -std::numeric_limits<float>::infinity()}) {
    RandomLayer layer(1, 10, 50, 15);
    Hessian hessian(10);
    hessian.add(layer.x.data(), 50, blas);
    const double before = hessian.at(3, 4);
    layer.x[37 * 10 + 6] = bad;
    try {
      hessian.add(layer.x.data(), 50, blas);
      ADD_FAILURE() << "took " << bad;
    } catch (const InputError& error) {
      EXPECT_EQ(error.row(), 37);
      EXPECT_EQ(error.column(), 6);
      EXPECT_THAT(error.what(), HasSubstr("row 37, input 6"));
    }
    EXPECT_EQ(hessian.rows(), 50);
    EXPECT_EQ(hessian.at(3, 4), before);
  }
}

}  // namespace
}  // namespace facet::quantizer
