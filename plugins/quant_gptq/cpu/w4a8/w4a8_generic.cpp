#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "w4a8/w4a8_kernels.h"

namespace facet::linear {

namespace {

// Codes of one segment as [input][row of the block].
using Codes = std::uint8_t[kActivationGroup][kBlockRows];

void unpack(const Rows16& w, const std::uint8_t* segment, Codes& codes) {
  const std::int64_t step = w.bits == 4 ? 8 : 4;
  for (std::int64_t k = 0; k < w.segment; ++k) {
    const std::uint8_t* vector = segment + k / step * 64 + k % 4;
    const int shift = k % step >= 4 ? 4 : 0;
    for (std::int64_t lane = 0; lane < kBlockRows; ++lane)
      codes[k][lane] = w.bits == 4 ? static_cast<std::uint8_t>((vector[4 * lane] >> shift) & 15) : vector[4 * lane];
  }
}

}  // namespace

void a8_generic(const A8Task& task) {
  const Rows16& w = task.weights;
  const std::int64_t inputs = w.segments * w.segment;
  for (std::int64_t block = task.block_begin; block < task.block_end; ++block) {
    const std::uint8_t* base = w.data + block * w.block_bytes;
    const std::int64_t columns = std::min(kBlockRows, w.out_features - block * kBlockRows);
    for (std::int64_t s = 0; s < w.segments; ++s) {
      const std::uint8_t* segment = base + s * w.segment_bytes;
      const float* scales = reinterpret_cast<const float*>(segment + w.segment_bytes - 64);
      Codes codes;
      unpack(w, segment, codes);
      for (std::int64_t row = 0; row < task.rows; ++row) {
        const std::int8_t* x = task.codes + row * inputs + s * w.segment;
        std::int32_t dots[kBlockRows];
        for (std::int64_t lane = 0; lane < kBlockRows; ++lane) {
          const std::int32_t zero = w.zeros_offset != 0 ? base[w.zeros_offset + s * kBlockRows + lane] : 1;
          dots[lane] = zero * task.offsets[row * w.segments + s];
        }
        for (std::int64_t k = 0; k < w.segment; ++k) {
          for (std::int64_t lane = 0; lane < kBlockRows; ++lane) dots[lane] += codes[k][lane] * x[k];
        }
        float* y = task.output + row * task.output_stride + block * kBlockRows;
        const float scale_x = task.scales[row * w.segments + s];
        for (std::int64_t lane = 0; lane < columns; ++lane)
          y[lane] = (s == 0 ? 0.0f : y[lane]) + static_cast<float>(dots[lane]) * scale_x * scales[lane];
      }
    }
  }
}

float quantize_generic(const float* input, std::int64_t count, std::int64_t padded, std::int8_t* codes) {
  std::uint32_t largest = 0;
  for (std::int64_t i = 0; i < count; ++i)
    // As integers, magnitudes order like the floats, with infinity and NaN at the top.
    largest = std::max(largest, std::bit_cast<std::uint32_t>(input[i]) & 0x7fffffffu);
  const float top = std::bit_cast<float>(largest);
  const bool finite = largest < 0x7f800000u;
  // Below 1e-30 the inverse would overflow; such a group is zero.
  const bool usable = finite && top > 1e-30f;
  const float inverse = usable ? 127.0f / top : 0.0f;
  for (std::int64_t i = 0; i < padded; ++i)
    codes[i] = i < count && usable ? static_cast<std::int8_t>(std::nearbyint(input[i] * inverse)) : std::int8_t{0};
  return usable ? top / 127.0f : finite ? 0.0f : std::numeric_limits<float>::quiet_NaN();
}

}  // namespace facet::linear
