#include "rtn_group.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace facet::quantizer {
namespace {

// Smallest normal bf16 (and float): below it a scale has few significant bits left, and kernels may flush it to zero.
constexpr double kSmallestScale = 0x1p-126;
constexpr double kLargestScale = 0x1.fep127;

// Values of a group and what an error of each counts.
struct Values {
  const float* values;
  const float* weights;  // null: 1
  std::int64_t count;
};

// Sum of squared errors for a given scale and zero. Eight partial sums, so that the loop vectorises with a fixed order
// of addition.
template <bool weighted>
float sum_errors(const Values& group, float scale, float zero, float largest) {
  constexpr std::int64_t kLanes = 8;
  const auto error = [&](std::int64_t i) {
    const float value = group.values[i];
    const float difference = value - (code_of(value, scale, zero, largest) - zero) * scale;
    if constexpr (weighted) return difference * difference * group.weights[i];
    return difference * difference;
  };
  float sums[kLanes] = {};
  std::int64_t i = 0;
  for (; i + kLanes <= group.count; i += kLanes) {
    for (std::int64_t lane = 0; lane < kLanes; ++lane) sums[lane] += error(i + lane);
  }
  for (; i < group.count; ++i) sums[0] += error(i);
  float total = 0;
  for (const float sum : sums) total += sum;
  return total;
}

float error_of(const Values& group, float scale, float zero, float largest) {
  return group.weights == nullptr ? sum_errors<false>(group, scale, zero, largest)
                                  : sum_errors<true>(group, scale, zero, largest);
}

struct Candidate {
  float scale;
  float zero;
  float error;
};

struct Range {
  double low;   // <= 0
  double high;  // >= 0
};

// Scale and zero for the range times `factor`.
Candidate candidate(const Range& range, double factor, const RtnOptions& options, const Grid& grid) {
  if (options.symmetric) {
    const double magnitude = std::max(-range.low, range.high);
    const double steps = options.range == SymmetricRange::half ? grid.largest / 2.0 : (grid.largest - 1) / 2.0;
    return {round_scale(factor * magnitude / steps), static_cast<float>(grid.middle), 0};
  }
  const float scale = round_scale(factor * (range.high - range.low) / grid.largest);
  if (scale == 0) return {0, static_cast<float>(grid.middle), 0};
  const double zero = std::nearbyint(-factor * range.low / scale);
  return {scale, static_cast<float>(std::clamp(zero, 0.0, static_cast<double>(grid.largest))), 0};
}

// The scale that fits the codes of `best` with least squares; kept only when the codes it leads to are better still.
void refit(const Values& group, float largest, Candidate& best) {
  double cross = 0, squares = 0;
  for (std::int64_t i = 0; i < group.count; ++i) {
    const double step = code_of(group.values[i], best.scale, best.zero, largest) - best.zero;
    const double weight = group.weights == nullptr ? 1.0 : group.weights[i];
    cross += weight * step * group.values[i];
    squares += weight * step * step;
  }
  if (squares == 0 || cross <= 0) return;
  Candidate fitted = {round_scale(cross / squares), best.zero, 0};
  if (fitted.scale == 0 || fitted.scale == best.scale) return;
  fitted.error = error_of(group, fitted.scale, fitted.zero, largest);
  if (fitted.error < best.error) best = fitted;
}

// The best of the plain choice and the grid of shrunk and widened ranges.
Candidate search(const Values& group, const Range& range, const RtnOptions& options, const Grid& grid, Candidate best) {
  const auto largest = static_cast<float>(grid.largest);
  best.error = error_of(group, best.scale, best.zero, largest);
  // From 1.1 (a symmetric group that needs its positive maximum uncut: 7.5 / 7 = 1.07) down to 0.5 in steps of 1/100:
  // for Gaussian weights in groups of 128 the optimum lies near 0.85, and no group of a real model was seen below 0.55.
  for (int percent = 110; percent >= 50; --percent) {
    Candidate next = candidate(range, percent / 100.0, options, grid);
    if (next.scale == 0 || (next.scale == best.scale && next.zero == best.zero)) continue;
    next.error = error_of(group, next.scale, next.zero, largest);
    if (next.error < best.error) best = next;
  }
  refit(group, largest, best);
  return best;
}

}  // namespace

float round_scale(double scale) {
  const double bounded = std::min(scale, kLargestScale);
  const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(bounded));
  const float rounded = std::bit_cast<float>((bits + 0x7fffu + ((bits >> 16) & 1u)) & 0xffff0000u);
  return rounded < kSmallestScale ? 0.0f : rounded;
}

GroupScale choose_scale(const float* values, const float* weights, std::int64_t count, const RtnOptions& options) {
  const Grid grid = grid_of(options.bits);
  Range range = {0, 0};
  for (std::int64_t i = 0; i < count; ++i) {
    range.low = std::min(range.low, static_cast<double>(values[i]));
    range.high = std::max(range.high, static_cast<double>(values[i]));
  }
  Candidate chosen = candidate(range, 1.0, options, grid);
  // Outside these bounds squared errors leave the range of float; such groups keep the plain scale.
  const bool searchable = chosen.scale > 1e-15f && chosen.scale < 1e15f;
  if (options.search_scales && searchable) chosen = search({values, weights, count}, range, options, grid, chosen);
  return {chosen.scale, static_cast<int>(chosen.zero)};
}

GroupResult quantize_group(const float* values, std::int64_t count, const RtnOptions& options, std::uint8_t* codes) {
  const auto largest = static_cast<float>(grid_of(options.bits).largest);
  const GroupScale chosen = choose_scale(values, nullptr, count, options);
  const auto zero = static_cast<float>(chosen.zero);
  GroupResult result{chosen.scale, chosen.zero, 0};
  for (std::int64_t i = 0; i < count; ++i) {
    const float code = chosen.scale == 0 ? zero : code_of(values[i], chosen.scale, zero, largest);
    codes[i] = static_cast<std::uint8_t>(code);
    const double difference = static_cast<double>(values[i]) - static_cast<double>(code - zero) * chosen.scale;
    result.error += difference * difference;
  }
  return result;
}

}  // namespace facet::quantizer
