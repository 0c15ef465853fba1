// What the tests of flash_cuda run through, and the seed of their random inputs.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>

#include "facet/abi/attention.h"

namespace facet::test {

inline constexpr abi::KvAddressing kAddressings[] = {abi::KvAddressing::contiguous, abi::KvAddressing::ring,
                                                     abi::KvAddressing::paged};
inline constexpr abi::KvOrder kOrders[] = {abi::KvOrder::token_major, abi::KvOrder::head_major};
inline constexpr abi::DType kElements[] = {abi::DType::bf16, abi::DType::i8};
inline constexpr std::int64_t kHeadDims[] = {64, 96, 128, 256, 512};

// FACET_TEST_SEED, or a fresh one; printed, so that a failure can be run again.
inline std::uint64_t base_seed() {
  static const std::uint64_t seed = [] {
    const char* text = std::getenv("FACET_TEST_SEED");
    const std::uint64_t chosen = text != nullptr ? std::strtoull(text, nullptr, 10) : std::random_device{}();
    std::printf("FACET_TEST_SEED=%llu\n", static_cast<unsigned long long>(chosen));
    return chosen;
  }();
  return seed;
}

}  // namespace facet::test
