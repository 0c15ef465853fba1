// GPTQ against a plain elimination in double, and the layers that break quantizers.
#include <gmock/gmock.h>

#include <cmath>
#include <numeric>

#include "random_layer.h"

namespace facet::quantizer {
namespace {

using testing::HasSubstr;

GptqResult quantize(const RandomLayer& layer, const Hessian& hessian, const GptqOptions& options,
                    const ParallelFor& parallel = {}) {
  const Blas blas;
  const GptqInput input(hessian, options, blas, parallel);
  return quantize_gptq(layer.matrix(), input, options, blas, parallel);
}

std::vector<double> inverse(std::vector<double> a, std::size_t n) {
  std::vector<double> b(n * n, 0.0);
  for (std::size_t i = 0; i < n; ++i) b[i * n + i] = 1;
  for (std::size_t pivot = 0; pivot < n; ++pivot) {
    const double scale = a[pivot * n + pivot];
    for (std::size_t j = 0; j < n; ++j) a[pivot * n + j] /= scale, b[pivot * n + j] /= scale;
    for (std::size_t i = 0; i < n; ++i) {
      if (i == pivot) continue;
      const double factor = a[i * n + pivot];
      for (std::size_t j = 0; j < n; ++j)
        a[i * n + j] -= factor * a[pivot * n + j], b[i * n + j] -= factor * b[pivot * n + j];
    }
  }
  return b;
}

// The published algorithm without any of its shortcuts: after each column the inverse itself is updated. Scales are
// taken from `result`. Returns false for a row in which a value lay so near to a tie that float may fall on either
// side.
struct Elimination {
  std::vector<double> inverse;
  std::vector<std::size_t> order;

  bool follow(const RandomLayer& layer, const Quantized& result, const GptqOptions& options, std::int64_t row) const {
    const auto n = static_cast<std::size_t>(layer.inputs);
    std::vector<double> w(layer.weights.begin() + row * layer.inputs, layer.weights.begin() + (row + 1) * layer.inputs);
    std::vector<double> h = inverse;
    for (const std::size_t j : order) {
      const auto column = static_cast<std::int64_t>(j);
      const double scale = result.scales[static_cast<std::size_t>(row * result.groups + column / options.group_size)];
      const double steps = w[j] / scale;
      if (std::abs(std::abs(steps - std::floor(steps)) - 0.5) < 1e-3) return false;
      const double q = std::clamp(std::nearbyint(steps), -8.0, 7.0) * scale;
      EXPECT_NEAR(value_of(result, options, layer.inputs, row, column), q, 1e-6 * scale)
          << "row " << row << " column " << j << " at " << steps << " steps";
      const double error = (w[j] - q) / h[j * n + j];
      for (std::size_t k = 0; k < n; ++k) w[k] -= error * h[j * n + k];
      const std::vector<double> line(h.begin() + static_cast<std::ptrdiff_t>(j * n),
                                     h.begin() + static_cast<std::ptrdiff_t>((j + 1) * n));
      for (std::size_t i = 0; i < n; ++i) {
        for (std::size_t k = 0; k < n; ++k) h[i * n + k] -= line[i] * line[k] / line[j];
      }
    }
    return true;
  }
};

TEST(Gptq, FollowsTheEliminationInDouble) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  constexpr std::int64_t kInputs = 160, kOutputs = 70;
  const RandomLayer layer(kOutputs, kInputs, 800, seed);
  for (const ColumnOrder order : {ColumnOrder::natural, ColumnOrder::activation}) {
    GptqOptions options;
    options.group_size = 32;
    options.order = order;
    options.scales = ScaleChoice::largest;
    options.damping = 0.01;
    const GptqResult result = quantize(layer, layer.hessian(), options);
    std::vector<double> h = layer.exact_hessian();
    double mean = 0;
    for (std::size_t i = 0; i < kInputs; ++i) mean += h[i * kInputs + i] / kInputs;
    Elimination elimination;
    elimination.order.resize(kInputs);
    std::iota(elimination.order.begin(), elimination.order.end(), 0u);
    if (order == ColumnOrder::activation) {
      std::stable_sort(elimination.order.begin(), elimination.order.end(),
                       [&](std::size_t a, std::size_t b) { return h[a * kInputs + a] > h[b * kInputs + b]; });
    }
    for (std::size_t i = 0; i < kInputs; ++i) h[i * kInputs + i] += options.damping * mean;
    elimination.inverse = inverse(h, kInputs);
    options.feedback = false;
    const Quantized nearest = quantize(layer, layer.hessian(), options).quantized;
    int followed = 0, kept = 0;
    for (std::int64_t row = 0; row < kOutputs; ++row) {
      // Rows where round to nearest happened to be better are kept as that.
      const auto begin = row * kInputs / 8, end = (row + 1) * kInputs / 8;
      const bool same = std::equal(nearest.words.begin() + begin, nearest.words.begin() + end,
                                   result.quantized.words.begin() + begin);
      kept += same ? 1 : 0;
      if (!same) followed += elimination.follow(layer, result.quantized, options, row) ? 1 : 0;
    }
    EXPECT_EQ(kept, result.kept_rows);
    // Each of 160 values is near a tie with probability 0.002: most rows have none.
    EXPECT_GE(followed, kOutputs / 3);
  }
}

TEST(Gptq, ReportsTheTrueErrorAndNeverAboveRoundToNearest) {
  const unsigned seed = std::random_device{}();
  for (const bool symmetric : {true, false}) {
    for (const std::int64_t group : {32, 128, -1}) {
      for (const ScaleChoice scales : {ScaleChoice::largest, ScaleChoice::search, ScaleChoice::hessian}) {
        for (const ColumnOrder order : {ColumnOrder::natural, ColumnOrder::activation}) {
          for (const int refinements : {0, 2}) {
            SCOPED_TRACE(testing::Message() << "seed " << seed << " group " << group << " symmetric " << symmetric
                                            << " scales " << static_cast<int>(scales) << " order "
                                            << static_cast<int>(order) << " refinements " << refinements);
            const RandomLayer layer(20, 200, 500, seed);
            const GptqOptions options{4,     symmetric, group, SymmetricRange::full, scales,
                                      order, true,      0.01,  refinements,          0};
            const GptqResult result = quantize(layer, layer.hessian(), options);
            const std::vector<double> exact = layer.exact_hessian();
            const double error = exact_error(layer, exact, result.quantized, options);
            // d H d^T in float over 200 columns: each row's sum cancels, so the bound is a share of the larger output.
            EXPECT_NEAR(result.error, error, 200 * 0x1p-24 * result.output + 1e-4 * error);
            EXPECT_LE(result.error, result.nearest_error);
            // The textbook: plain scales, no feedback.
            RtnOptions plain{4, symmetric, group};
            const double nearest = exact_error(layer, exact, quantize_rtn(layer.matrix(), plain), options);
            EXPECT_LT(error, nearest);
          }
        }
      }
    }
  }
}

TEST(Gptq, RefinementNeverRaisesTheError) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  const RandomLayer layer(70, 192, 600, seed);
  GptqOptions options;
  options.group_size = 64;
  double before = std::numeric_limits<double>::infinity();
  for (const int refinements : {0, 1, 2, 5}) {
    options.refinements = refinements;
    const double error = quantize(layer, layer.hessian(), options).error;
    EXPECT_LE(error, before * (1 + 1e-5)) << refinements << " rounds";
    before = error;
  }
}

TEST(Gptq, DoesNotDependOnThreads) {
  const RandomLayer layer(200, 300, 600, 21), other(1, 300, 600, 22);
  const Blas blas;
  Hessian hessian(300, true);
  hessian.add(layer.x.data(), layer.rows, blas, {}, other.x.data());
  GptqOptions options;
  options.refinements = 2;
  options.correction = 0.5;
  const GptqResult alone = quantize(layer, hessian, options), shared = quantize(layer, hessian, options, kThreads);
  EXPECT_EQ(alone.quantized.words, shared.quantized.words);
  EXPECT_EQ(alone.quantized.scales, shared.quantized.scales);
  EXPECT_EQ(alone.error, shared.error);
  EXPECT_EQ(alone.predicted_loss, shared.predicted_loss);
}

TEST(Gptq, DeadColumnsRoundToNearest) {
  RandomLayer layer(9, 96, 300, 23);
  const std::vector<std::int64_t> dead = {0, 5, 31, 32, 95};
  for (std::int64_t row = 0; row < layer.rows; ++row) {
    for (const std::int64_t column : dead) layer.x[static_cast<std::size_t>(row * 96 + column)] = 0.0f;
  }
  for (const ColumnOrder order : {ColumnOrder::natural, ColumnOrder::activation}) {
    GptqOptions options;
    options.group_size = 32;
    options.order = order;
    const Blas blas;
    const GptqInput input(layer.hessian(), options, blas);
    EXPECT_EQ(input.dead_columns(), static_cast<std::int64_t>(dead.size()));
    const GptqResult result = quantize_gptq(layer.matrix(), input, options, blas);
    for (std::int64_t row = 0; row < layer.outputs; ++row) {
      for (const std::int64_t column : dead) {
        const float scale = result.quantized.scales[static_cast<std::size_t>(row * 3 + column / 32)];
        const float w = layer.weights[static_cast<std::size_t>(row * 96 + column)];
        const float nearest = std::clamp(std::nearbyint(w / scale), -8.0f, 7.0f) * scale;
        EXPECT_EQ(value_of(result.quantized, options, 96, row, column), nearest);
      }
    }
  }
}

TEST(Gptq, AllInputsDead) {
  RandomLayer layer(4, 40, 10, 24);
  std::fill(layer.x.begin(), layer.x.end(), 0.0f);
  GptqOptions options;
  options.scales = ScaleChoice::largest;
  const GptqResult result = quantize(layer, layer.hessian(), options);
  EXPECT_EQ(result.quantized.words, quantize_rtn(layer.matrix(), {}).words);
  EXPECT_EQ(result.error, 0.0);
}

TEST(Gptq, ConstantInputsAndASingularHessian) {
  // Every row the same: H has rank 1. Fewer rows than inputs: it is singular, too.
  RandomLayer constant(6, 64, 50, 25), few(6, 64, 3, 26);
  for (std::int64_t row = 1; row < constant.rows; ++row)
    std::copy_n(constant.x.begin(), 64, constant.x.begin() + row * 64);
  for (const RandomLayer* layer : {&constant, &few}) {
    for (const double damping : {0.0, 0.01}) {
      GptqOptions options;
      options.damping = damping;
      options.refinements = 1;
      const Blas blas;
      const Hessian hessian = layer->hessian();
      const GptqInput input(hessian, options, blas);
      EXPECT_GT(input.damping(), 0.0);
      if (damping == 0.0) {
        EXPECT_GE(input.failures(), 1);
      } else {
        EXPECT_EQ(input.failures(), 0);
      }
      const GptqResult result = quantize_gptq(layer->matrix(), input, options, blas);
      EXPECT_LE(result.error, result.nearest_error);
      for (const float scale : result.quantized.scales) EXPECT_TRUE(std::isfinite(scale) && scale > 0);
    }
  }
}

// Groups without a usable range. Scales must stay finite, and a group of zeros exactly zero when scales are fixed
// before.
TEST(Gptq, AwkwardGroups) {
  constexpr std::int64_t kGroup = 32;
  for (const bool symmetric : {true, false}) {
    for (const ColumnOrder order : {ColumnOrder::natural, ColumnOrder::activation}) {
      RandomLayer layer(8, 3 * kGroup, 300, 40);
      const auto fill = [&](std::int64_t row, float value) {
        std::fill_n(layer.weights.begin() + row * layer.inputs + kGroup, kGroup, value);
      };
      fill(0, 0.0f);
      fill(1, 1e-30f);
      fill(2, 0.0f);
      layer.weights[static_cast<std::size_t>(2 * layer.inputs + kGroup + 5)] = 1e-40f;
      fill(3, 9.0f);
      fill(4, -9.0f);
      fill(5, 3e38f);
      GptqOptions options;
      options.group_size = kGroup;
      options.symmetric = symmetric;
      options.order = order;
      options.refinements = 2;
      // The row of 3e38 has errors beyond float; it must not spoil the others.
      const GptqResult result = quantize(layer, layer.hessian(), options);
      for (const float scale : result.quantized.scales) EXPECT_TRUE(std::isfinite(scale) && scale >= 0);
      if (order == ColumnOrder::activation) {
        for (std::int64_t k = kGroup; k < 2 * kGroup; ++k) {
          EXPECT_EQ(value_of(result.quantized, options, layer.inputs, 0, k), 0.0f);
          for (const std::int64_t row : {1, 2})
            EXPECT_LE(std::abs(value_of(result.quantized, options, layer.inputs, row, k)), 1e-7f);
        }
      }
    }
  }
}

// Scales weighted by the inputs lose less where inputs are large.
TEST(Gptq, HessianScalesLowerTheWeightedError) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  const RandomLayer layer(50, 256, 400, seed);
  const std::vector<double> exact = layer.exact_hessian();
  const auto weighted_error = [&](ScaleChoice scales) {
    GptqOptions options;
    options.feedback = false;
    options.scales = scales;
    const GptqResult result = quantize(layer, layer.hessian(), options);
    double sum = 0;
    for (std::int64_t row = 0; row < layer.outputs; ++row) {
      for (std::int64_t k = 0; k < layer.inputs; ++k) {
        const double d = static_cast<double>(layer.weights[static_cast<std::size_t>(row * layer.inputs + k)]) -
                         value_of(result.quantized, options, layer.inputs, row, k);
        sum += d * d * exact[static_cast<std::size_t>(k * layer.inputs + k)];
      }
    }
    return sum;
  };
  EXPECT_LT(weighted_error(ScaleChoice::hessian), weighted_error(ScaleChoice::search));
}

TEST(Gptq, OddShapes) {
  for (const std::int64_t inputs : {1, 2, 31, 129, 200}) {
    for (const std::int64_t outputs : {1, 2, 65}) {
      for (const std::int64_t group : {32, 128, -1}) {
        for (const bool symmetric : {true, false}) {
          SCOPED_TRACE(testing::Message() << outputs << " x " << inputs << " group " << group);
          const RandomLayer layer(outputs, inputs, 250, 27);
          GptqOptions options;
          options.group_size = group;
          options.symmetric = symmetric;
          options.refinements = 1;
          const GptqResult result = quantize(layer, layer.hessian(), options);
          const std::int64_t groups = group < 0 ? 1 : (inputs + group - 1) / group;
          EXPECT_EQ(result.quantized.scales.size(), static_cast<std::size_t>(outputs * groups));
          EXPECT_EQ(result.quantized.words.size(), static_cast<std::size_t>(outputs * ((inputs + 7) / 8)));
          EXPECT_LE(result.error, result.nearest_error);
        }
      }
    }
  }
}

TEST(Gptq, CorrectionComesNearerToTheOriginalOutputs) {
  const RandomLayer layer(40, 64, 1000, 28);
  RandomLayer original = layer;
  std::mt19937 random(29);
  std::normal_distribution<float> normal(0.0f, 1.0f);
  // The quantized model's inputs differ from the original's by a linear map of themselves, as after a quantized layer.
  std::vector<float> map(64 * 64);
  for (float& value : map) value = 0.02f * normal(random);
  for (std::size_t row = 0; row < 1000; ++row) {
    for (std::size_t i = 0; i < 64; ++i) {
      for (std::size_t j = 0; j < 64; ++j) original.x[row * 64 + i] += map[i * 64 + j] * layer.x[row * 64 + j];
    }
  }
  const Blas blas;
  Hessian hessian(64, true);
  hessian.add(layer.x.data(), 1000, blas, {}, original.x.data());
  const auto distance = [&](double share) {
    GptqOptions options;
    options.group_size = 32;
    options.damping = 1e-4;
    options.correction = share;
    const GptqResult result = quantize(layer, hessian, options);
    double sum = 0;
    for (std::size_t row = 0; row < 1000; ++row) {
      for (std::size_t out = 0; out < 40; ++out) {
        double difference = 0;
        for (std::size_t i = 0; i < 64; ++i) {
          difference += static_cast<double>(layer.weights[out * 64 + i]) * original.x[row * 64 + i] -
                        static_cast<double>(value_of(result.quantized, options, 64, static_cast<std::int64_t>(out),
                                                     static_cast<std::int64_t>(i))) *
                            layer.x[row * 64 + i];
        }
        sum += difference * difference;
      }
    }
    return sum;
  };
  // The map can be undone exactly, so what is left is rounding alone.
  EXPECT_LT(distance(1.0), 0.5 * distance(0.0));
}

TEST(Gptq, RefusalsNameTheTensor) {
  RandomLayer layer(5, 40, 100, 30);
  const Hessian hessian = layer.hessian();
  layer.weights[3 * 40 + 2] = std::nanf("");
  try {
    quantize(layer, hessian, {});
    ADD_FAILURE() << "took NaN";
  } catch (const QuantizeError& error) {
    EXPECT_THAT(error.what(), HasSubstr("'layer.weight': value at [3, 2]"));
  }
  const RandomLayer wider(5, 41, 100, 31);
  try {
    quantize(wider, hessian, {});
    ADD_FAILURE() << "took another width";
  } catch (const QuantizeError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("41 inputs"), HasSubstr("40")));
  }
}

}  // namespace
}  // namespace facet::quantizer
