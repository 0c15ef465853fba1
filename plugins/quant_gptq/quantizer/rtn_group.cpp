#include "rtn_group.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace facet::quantizer {
namespace {

// Smallest normal bf16 (and float): below it a scale has few significant bits left, and kernels may flush it to zero.
constexpr double kSmallestScale = 0x1p-126;
constexpr double kLargestScale = 0x1.fep127;

// Adding and subtracting 1.5 * 2^23 rounds to the nearest whole number, ties to even, for |x| < 2^22; unlike rintf it
// becomes two vector instructions on every x86-64. Quotients here are below 2^9 for scales of the search, and anything
// larger is clamped first.
constexpr float kRound = 12582912.0f;

// By value, so that it becomes two vector instructions; std::clamp returns a reference and stays a pair of branches.
inline float clamp_to(float value, float low, float high) {
  const float above = value > low ? value : low;
  return above < high ? above : high;
}

// Code of one value as a float: whole, within [0, largest].
inline float code_of(float value, float scale, float zero, float largest) {
  const float quotient = clamp_to(value / scale, -1024.0f, 1024.0f);
  const float rounded = (quotient + kRound) - kRound;
  return clamp_to(rounded + zero, 0.0f, largest);
}

// Sum of squared errors for a given scale and zero. Eight partial sums, so that the loop vectorises with a fixed order
// of addition.
float error_of(const float* values, std::int64_t count, float scale, float zero, float largest) {
  constexpr std::int64_t kLanes = 8;
  float sums[kLanes] = {};
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (std::int64_t lane = 0; lane < kLanes; ++lane) {
      const float value = values[i + lane];
      const float difference = value - (code_of(value, scale, zero, largest) - zero) * scale;
      sums[lane] += difference * difference;
    }
  }
  for (; i < count; ++i) {
    const float difference = values[i] - (code_of(values[i], scale, zero, largest) - zero) * scale;
    sums[0] += difference * difference;
  }
  float total = 0;
  for (const float sum : sums) total += sum;
  return total;
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
void refit(const float* values, std::int64_t count, float largest, Candidate& best) {
  double cross = 0, squares = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const double step = code_of(values[i], best.scale, best.zero, largest) - best.zero;
    cross += step * values[i];
    squares += step * step;
  }
  if (squares == 0 || cross <= 0) return;
  Candidate fitted = {round_scale(cross / squares), best.zero, 0};
  if (fitted.scale == 0 || fitted.scale == best.scale) return;
  fitted.error = error_of(values, count, fitted.scale, fitted.zero, largest);
  if (fitted.error < best.error) best = fitted;
}

// The best of the plain choice and the grid of shrunk and widened ranges.
Candidate search(const float* values, std::int64_t count, const Range& range, const RtnOptions& options,
                 const Grid& grid, Candidate best) {
  const auto largest = static_cast<float>(grid.largest);
  best.error = error_of(values, count, best.scale, best.zero, largest);
  // From 1.1 (a symmetric group that needs its positive maximum uncut: 7.5 / 7 = 1.07) down to 0.5 in steps of 1/100:
  // for Gaussian weights in groups of 128 the optimum lies near 0.85, and no group of a real model was seen below 0.55.
  for (int percent = 110; percent >= 50; --percent) {
    Candidate next = candidate(range, percent / 100.0, options, grid);
    if (next.scale == 0 || (next.scale == best.scale && next.zero == best.zero)) continue;
    next.error = error_of(values, count, next.scale, next.zero, largest);
    if (next.error < best.error) best = next;
  }
  refit(values, count, largest, best);
  return best;
}

}  // namespace

float round_scale(double scale) {
  const double bounded = std::min(scale, kLargestScale);
  const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(bounded));
  const float rounded = std::bit_cast<float>((bits + 0x7fffu + ((bits >> 16) & 1u)) & 0xffff0000u);
  return rounded < kSmallestScale ? 0.0f : rounded;
}

GroupResult quantize_group(const float* values, std::int64_t count, const RtnOptions& options, std::uint8_t* codes) {
  const Grid grid = grid_of(options.bits);
  const auto largest = static_cast<float>(grid.largest);
  Range range = {0, 0};
  for (std::int64_t i = 0; i < count; ++i) {
    range.low = std::min(range.low, static_cast<double>(values[i]));
    range.high = std::max(range.high, static_cast<double>(values[i]));
  }
  Candidate chosen = candidate(range, 1.0, options, grid);
  // Outside these bounds squared errors leave the range of float; such groups keep the plain scale.
  const bool searchable = chosen.scale > 1e-15f && chosen.scale < 1e15f;
  if (options.search_scales && searchable) chosen = search(values, count, range, options, grid, chosen);
  GroupResult result{chosen.scale, static_cast<int>(chosen.zero), 0};
  for (std::int64_t i = 0; i < count; ++i) {
    const float code = chosen.scale == 0 ? chosen.zero : code_of(values[i], chosen.scale, chosen.zero, largest);
    codes[i] = static_cast<std::uint8_t>(code);
    const double difference = static_cast<double>(values[i]) - static_cast<double>(code - chosen.zero) * chosen.scale;
    result.error += difference * difference;
  }
  return result;
}

}  // namespace facet::quantizer
