#include <algorithm>

#include "rows16/unpack.h"
#include "w4a16/w4a16_kernels.h"

namespace facet::linear {

void a16_generic(const A16Task& task) {
  const Rows16& w = task.weights;
  const float* input = static_cast<const float*>(task.input);
  for (std::int64_t block = task.block_begin; block < task.block_end; ++block) {
    const std::int64_t columns = std::min(kBlockRows, w.out_features - block * kBlockRows);
    for (std::int64_t s = 0; s < w.segments; ++s) {
      SegmentCodes segment;
      unpack_segment(w, block, s, segment);
      for (std::int64_t row = 0; row < task.rows; ++row) {
        const float* x = input + row * task.input_stride + s * w.segment;
        float dots[kBlockRows] = {};
        for (std::int64_t k = 0; k < w.segment; ++k) {
          for (std::int64_t lane = 0; lane < kBlockRows; ++lane) dots[lane] += segment.values[k][lane] * x[k];
        }
        float* y = task.output + row * task.output_stride + block * kBlockRows;
        for (std::int64_t lane = 0; lane < columns; ++lane)
          y[lane] = (s == 0 ? 0.0f : y[lane]) + dots[lane] * segment.scales[lane];
      }
    }
  }
}

}  // namespace facet::linear
