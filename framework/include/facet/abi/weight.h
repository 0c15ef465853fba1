// One weight matrix in canonical form: what every checkpoint format is brought to before a linear plugin packs it.
#pragma once

#include "facet/abi/types.h"

namespace facet::abi {

enum class WeightFormat : std::uint32_t { none = 0, bf16 = 1, int8 = 2, int4 = 3 };

// A matrix [out_features, in_features]; y = x W^T.
//   bf16: values is uint16_t [out, in], row stride row_bytes.
//   int4: values is uint32_t words, input i of a row in bits 4*(i%8) of word i/8 (low nibble first); row stride
//   row_bytes. int8: values is uint8_t [out, in]; row stride row_bytes.
// Codes are unsigned; weight = (code - zero) * scale. Symmetric weights have zeros == null and mean zero 8 (int4) or
// 128 (int8). A row has groups = ceil(in_features / group_size) scales; the last group may be short. Codes past
// in_features are undefined. Pointers live in host memory, may be unaligned beyond their element (values of a mapped
// file: 2 bytes for bf16, 1 for int8, 4 for int4) and stay valid while the call that received the view runs; for plans
// that read weights in place, while the plan lives.
struct WeightView {
  std::uint32_t size;
  WeightFormat format;
  std::int64_t out_features;
  std::int64_t in_features;
  std::int64_t group_size;  // 0 for bf16
  const void* values;
  std::int64_t row_bytes;
  const float* scales;        // [out, groups]; null for bf16
  const std::uint8_t* zeros;  // [out, groups] zero codes; null when symmetric
};

}  // namespace facet::abi
