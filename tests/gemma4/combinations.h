// The axes along which a run can differ without saying anything else, and a small set that covers every pair of values.
#pragma once

#include <array>
#include <string>
#include <vector>

namespace facet::test {

inline constexpr std::array<const char*, 3> kSlidingPolicies = {"static", "ring", "paged"};
inline constexpr std::array<const char*, 2> kGlobalPolicies = {"static", "paged"};
inline constexpr std::array<const char*, 2> kAttentions = {"reference", "flash"};
inline constexpr std::array<const char*, 2> kSchedulers = {"static", "continuous"};
inline constexpr std::array<int, 7> kChunks = {1, 7, 64, 255, 256, 257, 0};  // 0: whole prompts
inline constexpr std::array<const char*, 2> kPaths = {"prefill", "decode"};
inline constexpr std::array<const char*, 2> kForms = {"shared", "full"};  // of the cache of global layers
inline constexpr std::array<int, 7> kAxisSizes = {3, 2, 2, 2, 7, 2, 2};

// An index for each axis, in the order above.
using Combination = std::array<int, 7>;

std::string to_string(const Combination& combination);
// All 672.
std::vector<Combination> full_product();
// Few of them, in which any two values of any two axes meet at least once.
std::vector<Combination> pairwise_cover();

}  // namespace facet::test
