// What the headers under include/ are made of: the instructions that the kernels use, by what they do. Called by
// threads of a running kernel; addresses are 32-bit ones of shared memory.
#pragma once

#include <cstdint>

namespace facet::emulated {

// Along an axis, 0 to 2; threads of a block lie along the first two.
unsigned thread_index(int axis);
unsigned block_size(int axis);
unsigned block_index(int axis);
unsigned grid_size(int axis);

// Shared memory.
unsigned char* block_memory(std::uint32_t alignment);
bool& block_flag();
std::uint32_t shared_address(const void* pointer);
void* shared_pointer(std::uint32_t address, std::uint32_t bytes);
std::uint32_t cluster_address(std::uint32_t address, std::uint32_t rank);
void* cluster_pointer(const void* pointer, std::uint32_t rank);

// Barriers.
void barrier_init(std::uint32_t barrier, std::uint32_t arrivals);
void barrier_arrive(std::uint32_t barrier, bool remote);
void barrier_expect(std::uint32_t barrier, std::uint32_t bytes);
bool barrier_test(std::uint32_t barrier, std::uint32_t parity);
void barrier_wait(std::uint32_t barrier, std::uint32_t parity);
void block_sync();
void named_barrier(int id, int threads, bool wait);
void cluster_arrive();
void cluster_wait();

// Copies that arrive later.
void bulk_copy(std::uint32_t target, const void* source, std::uint32_t bytes, std::uint32_t barrier);
void tensor_copy(std::uint32_t target, const void* map, const int* at, int dimensions, std::uint32_t barrier);
void store_async(std::uint32_t target, const void* value, std::uint32_t bytes, std::uint32_t barrier);
// Past the registers, in groups of the thread's own; zeros without a source.
void copy16(std::uint32_t target, const void* source);
void copies_commit();
void copies_wait(int pending);  // until at most so many groups are under way
void copies_done();
void wait_for_predecessor();

// Of a warp.
void warp_sync(std::uint32_t mask);
enum class Shuffle { index, down, exclusive_or };
std::uint32_t shuffle(std::uint32_t mask, std::uint32_t value, Shuffle kind, int operand);
std::uint32_t ballot(std::uint32_t mask, bool predicate);

// Of a warp, by matrices. d = a b + c: 16x8 by 32 inputs.
void mma_u8s8(int* d, const std::uint32_t (&a)[4], const std::uint32_t (&b)[2], const int* c);
// d += a b: 16x8 by 16 inputs.
void mma_bf16(float* d, const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1);
// `count` matrices of 8x8 values of 2 bytes; lane 8 i + j brings the address of row j of matrix i.
void load_matrices(std::uint32_t* to, int count, std::uint32_t from, bool transposed);
// 8x8 values of 2 bytes, lane i has two of row i / 4.
std::uint32_t transpose_matrix(std::uint32_t from);

// Products of a warpgroup: 64 rows by `columns`. The right operand is in shared memory, by lines of one column's
// inputs, or (bf16) of 64 columns of one input.
enum class Elements { u8, s8, bf16 };
enum class Lines { columns, inputs };
void product_fence();
void product_commit();
void product_wait(int pending);
void product(Elements elements, int columns, void* sums, const std::uint32_t (&a)[4], std::uint64_t matrix, bool add,
             Lines lines = Lines::columns);
// The left operand in shared memory as well, by lines of one row's inputs, of bf16.
void product_of_matrices(int columns, void* sums, std::uint64_t left, std::uint64_t right, bool add);

}  // namespace facet::emulated
