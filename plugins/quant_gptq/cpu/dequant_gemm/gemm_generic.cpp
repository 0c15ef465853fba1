#include <algorithm>

#include "dequant_gemm/gemm_kernels.h"
#include "rows16/unpack.h"

namespace facet::linear {

void gemm_generic(const GemmTask& task) {
  const Rows16& w = task.weights;
  const float* input = static_cast<const float*>(task.input);
  static_assert(sizeof(SegmentCodes) <= kTileBytes);
  SegmentCodes& segment = *static_cast<SegmentCodes*>(task.tile);
  for (std::int64_t block = task.block_begin; block < task.block_end; ++block) {
    const std::int64_t columns = std::min(kBlockRows, w.out_features - block * kBlockRows);
    for (std::int64_t s = 0; s < w.segments; ++s) {
      unpack_segment(w, block, s, segment);
      for (std::int64_t k = 0; k < w.segment; ++k) {
        for (std::int64_t lane = 0; lane < kBlockRows; ++lane) segment.values[k][lane] *= segment.scales[lane];
      }
      for (std::int64_t row = 0; row < task.rows; ++row) {
        const float* x = input + row * task.input_stride + s * w.segment;
        float* y = task.output + row * task.output_stride + block * kBlockRows;
        float sums[kBlockRows] = {};
        if (s > 0) std::copy_n(y, columns, sums);
        for (std::int64_t k = 0; k < w.segment; ++k) {
          for (std::int64_t lane = 0; lane < kBlockRows; ++lane) sums[lane] += segment.values[k][lane] * x[k];
        }
        std::copy_n(sums, columns, y);
      }
    }
  }
}

}  // namespace facet::linear
