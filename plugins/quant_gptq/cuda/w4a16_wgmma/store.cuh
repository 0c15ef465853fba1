// Sums to y, and the GELU gate.
#pragma once

#include "quant_gptq/cuda/device/ptx.cuh"
#include "quant_gptq/cuda/w4a16_wgmma/layout.h"

namespace facet::linear {

__device__ __forceinline__ void store_output(unsigned char* at, bool f32, float value) {
  if (f32) {
    *reinterpret_cast<float*>(at) = value;
  } else {
    *reinterpret_cast<__nv_bfloat16*>(at) = __float2bfloat16_rn(value);
  }
}

// A warp writes UNITS units of ROWS rows of y, row first_row and every row_step-th from it. read(i, at): the sum of the
// i-th of these rows and of row `at` of the units.
template <int ROWS, int UNITS, typename Read>
__device__ __forceinline__ void store_units(const WgmmaArgs& a, int first_row, int row_step, int first_unit, int lane,
                                            Read read) {
  const bool f32 = a.output_f32 != 0;
  const int shift = f32 ? 2 : 1;
  const int outputs = static_cast<int>(a.shape.out_features);
  const int half = outputs / 2;
  const long long step = (row_step * a.y_stride) << shift;
  unsigned char* y = static_cast<unsigned char*>(a.y) + ((first_row * a.y_stride) << shift);
  // Gates and ups of two units side by side in the lanes of a warp.
  constexpr int kStores = UNITS / 2;
  if (a.fuse_gate != 0) {
    const int first = first_unit * 16 + lane;
    float values[ROWS][kStores];
#pragma unroll
    for (int i = 0; i < ROWS; ++i) {
#pragma unroll
      for (int pair = 0; pair < kStores; ++pair) {
        const int at = (2 * pair + lane / 16) * kUnitRows + lane % 16;
        values[i][pair] = gelu_tanh(read(i, at)) * read(i, at + 16);
      }
    }
#pragma unroll
    for (int i = 0; i < ROWS; ++i) {
      if (first_row + i * row_step >= a.rows) return;
#pragma unroll
      for (int pair = 0; pair < kStores; ++pair)
        if (first + 32 * pair < half) store_output(y + ((first + 32 * pair) << shift), f32, values[i][pair]);
      y += step;
    }
    return;
  }
  int columns[UNITS];  // of y; past its end where there is none
#pragma unroll
  for (int unit = 0; unit < UNITS; ++unit) {
    const int inside = (first_unit + unit) * 16 + lane % 16;
    columns[unit] = a.shape.gate == 0 ? (first_unit + unit) * kUnitRows + lane
                    : inside >= half  ? outputs
                    : lane < 16       ? inside
                                      : half + inside;
  }
  float values[ROWS][UNITS];
#pragma unroll
  for (int i = 0; i < ROWS; ++i) {
#pragma unroll
    for (int unit = 0; unit < UNITS; ++unit) values[i][unit] = read(i, unit * kUnitRows + lane);
  }
#pragma unroll
  for (int i = 0; i < ROWS; ++i) {
    if (first_row + i * row_step >= a.rows) return;
#pragma unroll
    for (int unit = 0; unit < UNITS; ++unit)
      if (columns[unit] < outputs)
        store_output(y + (static_cast<long long>(columns[unit]) << shift), f32, values[i][unit]);
    y += step;
  }
}

}  // namespace facet::linear
