// The machine itself: what it computes, and that it finds the faults that it is for.
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <random>

#include "facet/sdk/cuda/barrier.cuh"
#include "facet/sdk/cuda/cluster.cuh"
#include "facet/sdk/cuda/copy.cuh"
#include "facet/sdk/cuda/memory.cuh"
#include "facet/sdk/cuda/wgmma.cuh"
#include "machine.h"
#include "quant_gptq/cuda/device/integer_wgmma.cuh"

namespace facet::test {
namespace {

using namespace facet::cuda;
using linear::IntegerWgmma16;

constexpr int kRuns = 40;
constexpr std::uint32_t kMatrixBytes = 2048;

// What a run of a kernel ends with; empty when all is well.
std::string fault_of(const emulated::Launch& launch, const std::function<void()>& kernel) {
  try {
    emulated::run(launch, kernel);
  } catch (const emulated::Fault& fault) {
    return fault.what();
  }
  return {};
}

void expect_fault(const std::string& what, const emulated::Launch& launch, const std::function<void()>& kernel) {
  const std::string found = fault_of(launch, kernel);
  EXPECT_NE(found.find(what), std::string::npos) << "instead of '" << what << "': '" << found << "'";
}

class Machine : public testing::Test {
 protected:
  Machine() {
    emulated::set_seed(seed_);
    std::iota(values_, values_ + 32, 1.0f);
    for (int i = 0; i < static_cast<int>(kMatrixBytes); ++i) {
      matrix_[i] = static_cast<signed char>(i % 7 - 3);
      other_[i] = 100;
    }
  }
  ~Machine() override {
    if (HasFailure()) std::printf("seed %llu\n", static_cast<unsigned long long>(seed_));
  }
  const std::uint64_t seed_ = std::random_device{}();
  alignas(16) float values_[32];
  alignas(16) signed char matrix_[kMatrixBytes];  // 16 columns of 128 inputs
  alignas(16) signed char other_[kMatrixBytes];
};

// Copies 32 values and adds them up; `wait`: for the copy.
float copied_sum(const float* values, bool wait) {
  float sum = 0;
  emulated::run({1, 1, 32, 256}, [&] {
    unsigned char* memory = block_memory_128;
    const std::uint32_t barrier = shared_address(memory + 128);
    if (threadIdx.x == 0) {
      barrier_init(barrier, 1);
      barrier_init_fence();
      barrier_expect(barrier, 128);
      bulk_copy(shared_address(memory), values, 128, barrier);
    }
    __syncwarp();
    if (wait) barrier_wait(barrier, 0);
    float own = reinterpret_cast<const float*>(memory)[threadIdx.x];
    for (int lanes = 16; lanes > 0; lanes /= 2) own += __shfl_xor_sync(~0u, own, lanes);
    if (threadIdx.x == 0) sum = own;
    barrier_wait(barrier, 0);
  });
  return sum;
}

TEST_F(Machine, AMissingWaitForACopyShows) {
  int wrong = 0;
  for (int run = 0; run < kRuns; ++run) {
    EXPECT_EQ(copied_sum(values_, true), 528.0f);
    if (copied_sum(values_, false) != 528.0f) ++wrong;
  }
  EXPECT_GT(wrong, kRuns / 4);
}

// Adds up the second of two groups of copies after a wait that leaves `pending` groups under way.
float grouped_sum(const float* values, int pending) {
  float sum = 0;
  emulated::run({1, 1, 32, 256}, [&] {
    unsigned char* memory = block_memory_128;
    for (unsigned group = 0; group < 2; ++group) {
      const unsigned at = threadIdx.x % 8;
      if (threadIdx.x < 8) emulated::copy16(shared_address(memory + group * 128 + at * 16), values + at * 4);
      emulated::copies_commit();
    }
    emulated::copies_wait(pending);
    __syncwarp();
    float own = reinterpret_cast<const float*>(memory + 128)[threadIdx.x];
    for (int lanes = 16; lanes > 0; lanes /= 2) own += __shfl_xor_sync(~0u, own, lanes);
    if (threadIdx.x == 0) sum = own;
    emulated::copies_done();
  });
  return sum;
}

TEST_F(Machine, AWaitForTooFewGroupsOfCopiesShows) {
  int wrong = 0;
  for (int run = 0; run < kRuns; ++run) {
    EXPECT_EQ(grouped_sum(values_, 0), 528.0f);
    if (grouped_sum(values_, 1) != 528.0f) ++wrong;
  }
  EXPECT_GT(wrong, kRuns / 4);
}

// A product of ones and the matrix; then `other` is copied over the matrix, before or after the wait for the product.
int product_sum(const signed char* matrix, const signed char* other, bool wait_first, bool wait_at_all = true) {
  int sum = 0;
  emulated::run({1, 1, 128, kMatrixBytes + 16}, [&] {
    unsigned char* memory = block_memory_1024;
    const std::uint32_t barrier = shared_address(memory + kMatrixBytes);
    const auto copy = [&](const signed char* source, std::uint32_t parity) {
      if (threadIdx.x == 0) {
        barrier_expect(barrier, kMatrixBytes);
        bulk_copy(shared_address(memory), source, kMatrixBytes, barrier);
      }
      barrier_wait(barrier, parity);
    };
    if (threadIdx.x == 0) barrier_init(barrier, 1);
    __syncthreads();
    copy(matrix, 0);
    int sums[8];
    const std::uint32_t ones[4] = {0x01010101u, 0x01010101u, 0x01010101u, 0x01010101u};
    const auto columns = static_cast<std::uint32_t>(wgmma_matrix(shared_address(memory)));
    wgmma_fence();
    IntegerWgmma16<true, false>::run(sums, ones, columns);
    for (std::uint32_t byte = 32; byte < 128; byte += 32)
      IntegerWgmma16<true, true>::run(sums, ones, columns + (byte >> 4));
    wgmma_commit();
    if (wait_first) wgmma_wait<0>();
    __syncthreads();
    copy(other, 1);
    int own = 0;
    if (!wait_at_all) own = sums[0];
    wgmma_wait<0>();
    if (wait_at_all) own = sums[0];
    if (threadIdx.x == 0) sum = own;
  });
  return sum;
}

TEST_F(Machine, AMatrixOverwrittenUnderAProductShows) {
  // Column 0 is the first row of 128 bytes, whose pieces the swizzle leaves in place.
  const int right = std::accumulate(matrix_, matrix_ + 128, 0);
  int wrong = 0;
  for (int run = 0; run < kRuns; ++run) {
    EXPECT_EQ(product_sum(matrix_, other_, true), right);
    if (product_sum(matrix_, other_, false) != right) ++wrong;
  }
  EXPECT_GT(wrong, kRuns / 4);
}

TEST_F(Machine, SumsBeforeTheWaitAreNone) {
  for (int run = 0; run < kRuns; ++run)
    EXPECT_NE(product_sum(matrix_, other_, false, false), std::accumulate(matrix_, matrix_ + 128, 0));
}

TEST_F(Machine, ADeadlockIsReported) {
  const std::string found = fault_of({2, 2, 64, 64}, [] {
    const std::uint32_t barrier = shared_address(block_memory_128);
    if (threadIdx.x == 0) barrier_init(barrier, 3);
    __syncthreads();
    if (threadIdx.x % 32 == 0) barrier_arrive(barrier);
    if (blockIdx.x == 1) barrier_wait(barrier, 0);
  });
  EXPECT_NE(found.find("deadlock"), std::string::npos) << found;
  EXPECT_NE(
      found.find("block 1 warp 1, 32 lanes: waits for parity 0 of the barrier at block 1 of the cluster, offset 0"),
      std::string::npos)
      << found;
  EXPECT_NE(found.find("lacks 1 of 3 arrivals"), std::string::npos) << found;
  EXPECT_EQ(found.find("block 0"), std::string::npos) << found;
}

TEST_F(Machine, BarriersAreWatched) {
  expect_fault("where no barrier has been initialised", {1, 1, 32, 64},
               [] { barrier_arrive(shared_address(block_memory_128)); });
  expect_fault("initialised twice", {1, 1, 32, 64}, [] { barrier_init(shared_address(block_memory_128), 1); });
  expect_fault("has been overwritten", {1, 1, 1, 64}, [] {
    unsigned char* memory = block_memory_128;
    barrier_init(shared_address(memory), 1);
    memory[3] = 0;
    barrier_arrive(shared_address(memory));
  });
  expect_fault("more arrivals than the phase", {1, 1, 1, 64}, [&] {
    const std::uint32_t barrier = shared_address(block_memory_128);
    barrier_init(barrier, 1);
    barrier_expect(barrier, 16);
    barrier_arrive(barrier);
  });
  expect_fault("which is not the own block's", {2, 2, 1, 64}, [] {
    const std::uint32_t barrier = shared_address(block_memory_128);
    barrier_init(barrier, 1);
    cluster_arrive();
    cluster_wait();
    barrier_arrive(cluster_address(barrier, 1 - blockIdx.x));
  });
  expect_fault("threads, of others of", {1, 1, 64, 0}, [] { named_sync(1, threadIdx.x < 32 ? 32 : 64); });
}

TEST_F(Machine, PlacesAreWatched) {
  const auto copy = [&](std::uint32_t offset, std::uint32_t bytes) {
    return [this, offset, bytes] {
      unsigned char* memory = block_memory_128;
      barrier_init(shared_address(memory + 256), 1);
      bulk_copy(shared_address(memory) + offset, values_, bytes, shared_address(memory + 256));
    };
  };
  expect_fault("which has 272", {1, 1, 1, 272}, copy(240, 64));
  expect_fault("bulk_copy of 24 bytes", {1, 1, 1, 272}, copy(0, 24));
  expect_fault("not a multiple of 16", {1, 1, 1, 272}, copy(8, 16));
  expect_fault("wrote past its shared memory", {1, 1, 1, 64}, [] {
    unsigned char* memory = block_memory_128;
    memory[64] = 1;
  });
}

TEST_F(Machine, WarpsComeTogether) {
  expect_fault("where others of the warp are at", {1, 1, 32, 0}, [] {
    if (threadIdx.x < 16) {
      __syncwarp();
    } else {
      __shfl_xor_sync(~0u, 1, 1);
    }
  });
  expect_fault("ended", {1, 1, 32, 0}, [] {
    if (threadIdx.x != 7) __syncwarp();
  });
  expect_fault("took no part in a product of its warpgroup", {1, 1, 128, kMatrixBytes}, [] {
    if (threadIdx.x >= 96) return;
    int sums[8];
    const std::uint32_t ones[4] = {};
    wgmma_fence();
    IntegerWgmma16<true, false>::run(sums, ones,
                                     static_cast<std::uint32_t>(wgmma_matrix(shared_address(block_memory_1024))));
    wgmma_commit();
    wgmma_wait<0>();
  });
}

TEST_F(Machine, StoresToABlockThatHasEndedShow) {
  bool found = false;
  for (int run = 0; run < kRuns; ++run) {
    found = found || fault_of({2, 2, 1, 64}, [] {
                       unsigned char* memory = block_memory_128;
                       const std::uint32_t barrier = shared_address(memory);
                       barrier_init(barrier, 1);
                       cluster_arrive();
                       cluster_wait();
                       const float4 value{};
                       if (blockIdx.x == 0)
                         emulated::store_async(cluster_address(barrier + 16, 1), &value, sizeof value,
                                               cluster_address(barrier, 1));
                     }).find("a block that has ended") != std::string::npos;
  }
  EXPECT_TRUE(found);
}

}  // namespace
}  // namespace facet::test
