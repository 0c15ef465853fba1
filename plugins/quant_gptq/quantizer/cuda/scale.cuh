// Choosing the scale of one group with one warp: the same candidates as rtn_group.cpp, sums in another order.
#pragma once

#include "kernels.h"

namespace facet::quantizer::cuda {

inline constexpr int kLanes = 32;
inline constexpr unsigned kAll = 0xffffffffu;

// Values of a group, one lane holding the elements lane + 32 t.
inline constexpr int kSlots = 4;

__device__ inline float warp_sum(float value) {
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(kAll, value, step);
  return value;
}
__device__ inline double warp_sum(double value) {
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(kAll, value, step);
  return value;
}

__device__ inline int largest_code(const Format& format) {
  return (1 << format.bits) - 1;
}
__device__ inline float middle_code(const Format& format) {
  return static_cast<float>(1 << (format.bits - 1));
}

// As code_of() in rtn_group.h; rounding intrinsics keep the compiler from fusing.
__device__ inline float code_of(float value, float scale, float zero, float largest) {
  const float quotient = fminf(fmaxf(__fdiv_rn(value, scale), -1024.0f), 1024.0f);
  return fminf(fmaxf(rintf(quotient) + zero, 0.0f), largest);
}
__device__ inline float nearest_code(float value, float scale, float zero, float largest) {
  return scale == 0.0f ? zero : code_of(value, scale, zero, largest);
}

// As round_scale() in rtn_group.cpp.
__device__ inline float round_scale(double scale) {
  const double bounded = fmin(scale, 0x1.fep127);
  const unsigned bits = __float_as_uint(__double2float_rn(bounded));
  const float rounded = __uint_as_float((bits + 0x7fffu + ((bits >> 16) & 1u)) & 0xffff0000u);
  return rounded < 0x1p-126f ? 0.0f : rounded;
}

struct Group {
  float values[kSlots];
  float weights[kSlots];  // 0 past the end
  int slots;              // that hold any element
};

struct Chosen {
  float scale, zero, error;
};

__device__ inline float group_error(const Group& group, float scale, float zero, float largest) {
  float sum = 0;
#pragma unroll
  for (int t = 0; t < kSlots; ++t) {
    if (t >= group.slots) break;
    const float step = code_of(group.values[t], scale, zero, largest) - zero;
    const float difference = group.values[t] - step * scale;
    sum += difference * difference * group.weights[t];
  }
  return warp_sum(sum);
}

__device__ inline Chosen candidate(double low, double high, double factor, const Format& format) {
  const double largest = largest_code(format);
  if (format.symmetric != 0) {
    const double steps = format.half_range != 0 ? largest / 2.0 : (largest - 1) / 2.0;
    return {round_scale(factor * fmax(-low, high) / steps), middle_code(format), 0.0f};
  }
  const float scale = round_scale(factor * (high - low) / largest);
  if (scale == 0.0f) return {0.0f, middle_code(format), 0.0f};
  const double zero = nearbyint(-factor * low / scale);
  return {scale, static_cast<float>(fmin(fmax(zero, 0.0), largest)), 0.0f};
}

__device__ inline void refit(const Group& group, float largest, Chosen& best) {
  double cross = 0, squares = 0;
#pragma unroll
  for (int t = 0; t < kSlots; ++t) {
    if (t >= group.slots) break;
    const double step = code_of(group.values[t], best.scale, best.zero, largest) - best.zero;
    cross += group.weights[t] * step * group.values[t];
    squares += group.weights[t] * step * step;
  }
  cross = warp_sum(cross);
  squares = warp_sum(squares);
  if (squares == 0 || cross <= 0) return;
  Chosen fitted = {round_scale(cross / squares), best.zero, 0.0f};
  if (fitted.scale == 0.0f || fitted.scale == best.scale) return;
  fitted.error = group_error(group, fitted.scale, fitted.zero, largest);
  if (fitted.error < best.error) best = fitted;
}

// Every lane returns the same.
__device__ inline Chosen choose_scale(const Group& group, const Format& format) {
  float low = 0, high = 0;
#pragma unroll
  for (int t = 0; t < kSlots; ++t) {
    low = fminf(low, group.values[t]);
    high = fmaxf(high, group.values[t]);
  }
  for (int step = 16; step > 0; step /= 2) {
    low = fminf(low, __shfl_xor_sync(kAll, low, step));
    high = fmaxf(high, __shfl_xor_sync(kAll, high, step));
  }
  const auto largest = static_cast<float>(largest_code(format));
  Chosen best = candidate(low, high, 1.0, format);
  if (format.search == 0 || !(best.scale > 1e-15f && best.scale < 1e15f)) return best;
  best.error = group_error(group, best.scale, best.zero, largest);
  for (int percent = 110; percent >= 50; --percent) {
    Chosen next = candidate(low, high, percent / 100.0, format);
    if (next.scale == 0.0f || (next.scale == best.scale && next.zero == best.zero)) continue;
    next.error = group_error(group, next.scale, next.zero, largest);
    if (next.error < best.error) best = next;
  }
  refit(group, largest, best);
  return best;
}

// Group `index` of a row whose values lie at row[0 .. columns).
__device__ inline Group load_group(const float* row, int index, const Format& format, int lane) {
  const int begin = index * format.group_size, end = min(begin + format.group_size, format.columns);
  Group group{};
  group.slots = (end - begin + kLanes - 1) / kLanes;
#pragma unroll
  for (int t = 0; t < kSlots; ++t) {
    const int column = begin + t * kLanes + lane;
    if (column >= end) continue;
    group.values[t] = row[column];
    group.weights[t] = format.importance != nullptr ? format.importance[column] : 1.0f;
  }
  return group;
}

}  // namespace facet::quantizer::cuda
