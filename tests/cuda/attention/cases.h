// What the tests of flash_cuda run through, the seed of their random inputs, and what differs between a device and the
// emulated machine: implemented in on_device.cpp and ../emulated/attention_cases.cpp.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>

#include "facet/abi/attention.h"
#include "prepared_world.h"

namespace facet::test {

inline constexpr abi::KvAddressing kAddressings[] = {abi::KvAddressing::contiguous, abi::KvAddressing::ring,
                                                     abi::KvAddressing::paged};
inline constexpr abi::KvOrder kOrders[] = {abi::KvOrder::token_major, abi::KvOrder::head_major};
inline constexpr abi::DType kElements[] = {abi::DType::bf16, abi::DType::i8};
inline constexpr std::int64_t kHeadDims[] = {64, 96, 128, 256, 512};

// FACET_SEED, or a fresh one; printed, so that a failure can be run again.
inline std::uint64_t base_seed() {
  static const std::uint64_t seed = [] {
    const char* text = std::getenv("FACET_SEED");
    const std::uint64_t chosen = text != nullptr ? std::strtoull(text, nullptr, 10) : std::random_device{}();
    std::printf("FACET_SEED=%llu\n", static_cast<unsigned long long>(chosen));
    return chosen;
  }();
  return seed;
}

// Whether this case of the running test is one to run: on a device all are. See work_of().
bool drawn(double work);

// The backend's preparation of attention.
Prepare backend_preparation();

}  // namespace facet::test
