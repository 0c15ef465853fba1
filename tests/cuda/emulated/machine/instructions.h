// What the headers under include/ are made of: the instructions that the kernels use, by what they do. Called by
// threads of a running kernel; addresses are 32-bit ones of shared memory.
#pragma once

#include <cstdint>

namespace facet::emulated {

// Of the one dimension that there is.
unsigned thread_index();
unsigned block_index();
unsigned grid_size();
unsigned block_size();

// Shared memory.
unsigned char* block_memory(std::uint32_t alignment);
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
void copy16(std::uint32_t target, const void* source);
void copies_done();
void wait_for_predecessor();

// Of a warp.
void warp_sync(std::uint32_t mask);
enum class Shuffle { index, down, exclusive_or };
std::uint32_t shuffle(std::uint32_t mask, std::uint32_t value, Shuffle kind, int operand);
std::uint32_t ballot(std::uint32_t mask, bool predicate);

// d = a b + c: 16x8 by 32 inputs.
void mma_u8s8(int* d, const std::uint32_t (&a)[4], const std::uint32_t (&b)[2], const int* c);

// Products of a warpgroup: 64 rows by `columns`, the left operand in registers.
enum class Elements { u8, s8, bf16 };
void product_fence();
void product_commit();
void product_wait(int pending);
void product(Elements elements, int columns, void* sums, const std::uint32_t (&a)[4], std::uint64_t matrix, bool add);

}  // namespace facet::emulated
