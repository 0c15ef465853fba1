// The rate of products: tensor cores that multiply the same two tiles of shared memory over and over.
#include <cuda_bf16.h>

#include "facet/sdk/cuda/wgmma.cuh"
#include "measure.h"

namespace facet::cuda {
namespace {

constexpr int kGroups = 2;  // warpgroups of a block, a product of 64 x 128 x 16 each at a time
constexpr unsigned kThreads = kGroups * 128;
constexpr int kSteps = 4;  // of 16 inputs: a row of a tile is 128 bytes
constexpr int kLeftBytes = 64 * 128;
constexpr int kRightBytes = 128 * 128;
constexpr std::int64_t kRounds = 1 << 14;  // some 15 ms on an H200

// d += a b. The operands are rows of 64 inputs, 128 bytes each in the 128-byte swizzle.
__device__ __forceinline__ void multiply(float (&d)[64], std::uint64_t a, std::uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, "
      "%10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, "
      "%29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, %64, %65, 1, "
      "1, 1, 0, 0;"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),
        "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]),
        "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]),
        "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), "+f"(d[32]),
        "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]),
        "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]),
        "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]), "+f"(d[56]),
        "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
      : "l"(a), "l"(b));
}

__global__ void __launch_bounds__(kThreads, 1) multiply_kernel(std::int64_t rounds, float* sink) {
  __shared__ __align__(1024) unsigned char tiles[kGroups * kLeftBytes + kRightBytes];
  // Mantissas and signs as if at random: what tensor cores draw, and so their clock, depends on the operands.
  auto* words = reinterpret_cast<std::uint32_t*>(tiles);
  for (std::uint32_t i = threadIdx.x; i < sizeof tiles / 4; i += kThreads)
    words[i] = (((i + 1) * 2654435761u) & 0x80ff80ffu) | 0x3f003f00u;
  async_fence_shared();
  __syncthreads();
  const std::uint64_t left = wgmma_matrix(shared_address(tiles + threadIdx.x / 128 * kLeftBytes));
  const std::uint64_t right = wgmma_matrix(shared_address(tiles + kGroups * kLeftBytes));
  float sums[64] = {};
  wgmma_fence();
#pragma unroll 1
  for (std::int64_t round = 0; round < rounds; ++round) {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) multiply(sums, left + 2 * step, right + 2 * step);
    wgmma_commit();
    wgmma_wait<1>();
  }
  wgmma_wait<0>();
  float sum = 0;
#pragma unroll
  for (float value : sums) sum += value;
  if (sum == 0x1p-100f) *sink = sum;  // never, so that the products stay
}

}  // namespace

cudaError_t launch_multiply(int blocks, double* operations, float* sink, cudaStream_t stream) {
  *operations = 2.0 * 64 * 128 * 16 * kSteps * kGroups * static_cast<double>(kRounds) * blocks;
  multiply_kernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(kRounds, sink);
  return cudaGetLastError();
}

}  // namespace facet::cuda
