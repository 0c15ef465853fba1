// Warpgroup matrix products of integers: 64 rows of bytes, SIGNED or not, from registers, 16 columns of signed bytes
// from shared memory, 32 inputs, int32 sums. Operand and sums as mma.m16n8k32 has them. The columns are the lower half
// of their wgmma_matrix(): sums of 32 bits take half the instructions that move one.
#pragma once

#include <cstdint>

#include "facet/sdk/cuda/matrix.cuh"

namespace facet::linear {

// d = a b, or d += a b when ADD.
template <bool SIGNED, bool ADD>
struct IntegerWgmma16;

template <bool ADD>
struct IntegerWgmma16<false, ADD> {
  __device__ __forceinline__ static void run(int (&d)[8], const std::uint32_t (&a)[4], std::uint32_t columns) {
    asm volatile(
        "{\n.reg .pred add;\n.reg .b64 b;\nsetp.ne.b32 add, %13, 0;\nmov.b64 b, {%12, %14};\n"
        "wgmma.mma_async.sync.aligned.m64n16k32.s32.u8.s8 {%0, %1, %2, %3, %4, %5, %6, %7}, {%8, %9, %10, %11}, "
        "b, add;\n}"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3]), "+r"(d[4]), "+r"(d[5]), "+r"(d[6]), "+r"(d[7])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(columns), "n"(ADD ? 1 : 0), "n"(cuda::kWgmmaMatrixHigh));
  }
};

template <bool ADD>
struct IntegerWgmma16<true, ADD> {
  __device__ __forceinline__ static void run(int (&d)[8], const std::uint32_t (&a)[4], std::uint32_t columns) {
    asm volatile(
        "{\n.reg .pred add;\n.reg .b64 b;\nsetp.ne.b32 add, %13, 0;\nmov.b64 b, {%12, %14};\n"
        "wgmma.mma_async.sync.aligned.m64n16k32.s32.s8.s8 {%0, %1, %2, %3, %4, %5, %6, %7}, {%8, %9, %10, %11}, "
        "b, add;\n}"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3]), "+r"(d[4]), "+r"(d[5]), "+r"(d[6]), "+r"(d[7])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(columns), "n"(ADD ? 1 : 0), "n"(cuda::kWgmmaMatrixHigh));
  }
};

}  // namespace facet::linear
