// No inline functions here: see CMakeLists.txt.
#pragma once

#include <cstdint>

namespace facet::linear {

// One row of `count` inputs to `padded` bf16 values (past `count`: 0), every 8 of them in the order 0 2 1 3 4 6 5 7: a
// pair then is what one 16-bit step of the packed lanes of rows16.h holds. Needs AVX-512 BF16.
void round_pairs_avx512_bf16(const float* input, std::int64_t count, std::int64_t padded, std::uint16_t* output);

}  // namespace facet::linear
