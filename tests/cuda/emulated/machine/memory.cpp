// Shared memory and what is copied to it.
#include <array>
#include <cstring>

#include "instructions.h"
#include "state.h"
#include "tensor_map.h"

namespace facet::emulated {

namespace {

// Bytes that come to a place and are counted by a barrier, when they come.
struct Arrival : Work {
  Cluster* cluster = nullptr;
  std::uint32_t target = 0;
  std::uint32_t bytes = 0;
  std::uint32_t barrier = 0;
  const char* what = "";
  unsigned char* place() const { return place_at(*cluster, target, bytes, 1, what); }
  void count() const { complete_bytes(*cluster, barrier, bytes); }
};

struct BulkCopy : Arrival {
  const void* source = nullptr;
  void run() override {
    std::memcpy(place(), source, bytes);
    count();
  }
};

struct TensorCopy : Arrival {
  TensorMap map;
  std::array<int, 5> at{};
  void run() override {
    copy_box(map, at, target & kOffsetMask, place());
    count();
  }
};

struct StoreAsync : Arrival {
  std::array<unsigned char, 16> value{};
  void run() override {
    std::memcpy(place(), value.data(), bytes);
    count();
  }
};

struct Copy16 : Arrival {
  const void* source = nullptr;
  void run() override { std::memcpy(place(), source, bytes); }
};

template <typename T>
std::unique_ptr<T> arrival(const char* what, std::uint32_t target, std::uint32_t bytes, std::uint32_t barrier,
                           std::uint32_t aligned) {
  maybe_yield();
  Cluster& cluster = cluster_of(self());
  place_at(cluster, target, bytes, aligned, what);
  auto made = std::make_unique<T>();
  made->cluster = &cluster;
  made->target = target;
  made->bytes = bytes;
  made->barrier = barrier;
  made->what = what;
  return made;
}

void require_aligned(const void* source, const char* what) {
  if (reinterpret_cast<std::uintptr_t>(source) % 16 != 0) fail(std::string(what) + " from an address not of 16 bytes");
}

}  // namespace

std::string name_of_address(std::uint32_t address) {
  return "block " + std::to_string(address >> kRankShift) + " of the cluster, offset " +
         std::to_string(static_cast<std::int64_t>(address & kOffsetMask) - kSystemBytes);
}

Block& block_at(const Cluster& cluster, std::uint32_t address) {
  const std::uint32_t rank = address >> kRankShift;
  if (rank >= cluster.blocks.size()) fail("shared address " + std::to_string(address) + " is of no block");
  return const_cast<Block&>(cluster.blocks[rank]);
}

unsigned char* place_at(Cluster& cluster, std::uint32_t address, std::uint32_t bytes, std::uint32_t aligned,
                        const char* what) {
  const Block& block = block_at(cluster, address);
  const std::uint32_t offset = address & kOffsetMask;
  if (offset < kSystemBytes || offset + bytes > block.bytes)
    fail(std::string(what) + " of " + std::to_string(bytes) + " bytes at " + name_of_address(address) + ", which has " +
         std::to_string(block.bytes - kSystemBytes));
  if (offset % aligned != 0)
    fail(std::string(what) + " at " + name_of_address(address) + ", which is not a multiple of " +
         std::to_string(aligned));
  if (block.alive == 0) fail(std::string(what) + " at " + name_of_address(address) + ", a block that has ended");
  return block.memory + offset;
}

unsigned thread_index(int axis) {
  const unsigned index = self().index;
  const unsigned x = block_size(0);
  return axis == 0 ? index % x : axis == 1 ? index / x : 0;
}
unsigned block_size(int axis) {
  const Launch& launch = cluster_of(self()).launch;
  const unsigned x = launch.threads_x != 0 ? launch.threads_x : launch.threads;
  return axis == 0 ? x : axis == 1 ? launch.threads / x : 1;
}
unsigned block_index(int axis) {
  const unsigned index = block_of(self()).index;
  const unsigned x = grid_size(0), y = grid_size(1);
  return axis == 0 ? index % x : axis == 1 ? index / x % y : index / x / y;
}
unsigned grid_size(int axis) {
  const Launch& launch = cluster_of(self()).launch;
  const unsigned x = launch.grid_x != 0 ? launch.grid_x : launch.grid;
  return axis == 0 ? x : axis == 1 ? launch.grid_y : launch.grid / x / launch.grid_y;
}

unsigned char* block_memory(std::uint32_t alignment) {
  static_assert(kSystemBytes == 1024);
  if (alignment > kSystemBytes) fail("shared memory begins at a multiple of 1024 only");
  return block_of(self()).memory + kSystemBytes;
}

bool& block_flag() {
  return block_of(self()).flag;
}

std::uint32_t shared_address(const void* pointer) {
  const Block& block = block_of(self());
  const std::ptrdiff_t offset = static_cast<const unsigned char*>(pointer) - block.memory;
  // Lanes that take no part may have an address beyond the end: only its use is a fault.
  if (offset < 0 || offset > kMostOffset)
    fail("a pointer taken as shared that is not of the own block's shared memory");
  return block.rank << kRankShift | static_cast<std::uint32_t>(offset);
}

void* shared_pointer(std::uint32_t address, std::uint32_t bytes) {
  return place_at(cluster_of(self()), address, bytes, bytes, "an access");
}

std::uint32_t cluster_address(std::uint32_t address, std::uint32_t rank) {
  if (rank >= cluster_of(self()).blocks.size()) fail("rank " + std::to_string(rank) + " is not of the cluster");
  return rank << kRankShift | (address & kOffsetMask);
}

void* cluster_pointer(const void* pointer, std::uint32_t rank) {
  const std::uint32_t address = cluster_address(shared_address(pointer), rank);
  return block_at(cluster_of(self()), address).memory + (address & kOffsetMask);
}

void bulk_copy(std::uint32_t target, const void* source, std::uint32_t bytes, std::uint32_t barrier) {
  auto copy = arrival<BulkCopy>("bulk_copy", target, bytes, barrier, 16);
  if (bytes == 0 || bytes % 16 != 0) fail("bulk_copy of " + std::to_string(bytes) + " bytes");
  require_aligned(source, "bulk_copy");
  copy->source = source;
  add_work(std::move(copy));
}

void tensor_copy(std::uint32_t target, const void* map, const int* at, int dimensions, std::uint32_t barrier) {
  TensorMap known;
  std::memcpy(&known, map, sizeof known);
  if (known.mark != kTensorMapMark) fail("tensor_copy with a map that nobody made");
  if (known.dimensions != static_cast<std::uint32_t>(dimensions))
    fail("tensor_copy of " + std::to_string(dimensions) + " dimensions with a map of " +
         std::to_string(known.dimensions));
  // Tensors are activations, which the launch before writes.
  if (!self().predecessor_awaited) fail("tensor_copy before wait_for_predecessor");
  auto copy = arrival<TensorCopy>("tensor_copy", target, box_bytes(known), barrier, 1024);
  copy->map = known;
  for (int i = 0; i < dimensions; ++i) copy->at[static_cast<std::size_t>(i)] = at[i];
  add_work(std::move(copy));
}

void store_async(std::uint32_t target, const void* value, std::uint32_t bytes, std::uint32_t barrier) {
  auto store = arrival<StoreAsync>("store_async", target, bytes, barrier, bytes);
  if (target >> kRankShift != barrier >> kRankShift) fail("store_async with a barrier of another block");
  std::memcpy(store->value.data(), value, bytes);
  add_work(std::move(store));
}

void copy16(std::uint32_t target, const void* source) {
  static const std::array<unsigned char, 16> zeros{};
  auto copy = arrival<Copy16>("copy16", target, 16, 0, 16);
  if (source != nullptr) require_aligned(source, "copy16");
  copy->source = source != nullptr ? source : zeros.data();
  copy->owner = &self();
  copy->group = self().copy_group;
  add_work(std::move(copy));
}

void copies_commit() {
  ++self().copy_group;
}

void copies_wait(int pending) {
  const auto kept = static_cast<std::uint64_t>(pending);
  if (self().copy_group > kept) finish_work(&self(), self().copy_group - kept);
}

void copies_done() {
  finish_work(&self(), self().copy_group + 1);
}

void wait_for_predecessor() {
  maybe_yield();
  self().predecessor_awaited = true;
}

}  // namespace facet::emulated
