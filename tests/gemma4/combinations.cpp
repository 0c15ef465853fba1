#include "combinations.h"

#include <fmt/format.h>

#include <set>
#include <tuple>

namespace facet::test {
namespace {

using Pair = std::tuple<std::size_t, int, std::size_t, int>;

std::set<Pair> pairs_of(const Combination& combination) {
  std::set<Pair> pairs;
  for (std::size_t a = 0; a < combination.size(); ++a)
    for (std::size_t b = a + 1; b < combination.size(); ++b) pairs.insert({a, combination[a], b, combination[b]});
  return pairs;
}

}  // namespace

std::string to_string(const Combination& c) {
  const auto at = [&](std::size_t axis) { return static_cast<std::size_t>(c[axis]); };
  return fmt::format("sliding {}, global {}, attention {}, scheduler {}, chunk {}, {}, {} form",
                     kSlidingPolicies[at(0)], kGlobalPolicies[at(1)], kAttentions[at(2)], kSchedulers[at(3)],
                     kChunks[at(4)], kPaths[at(5)], kForms[at(6)]);
}

std::vector<Combination> full_product() {
  std::vector<Combination> all = {{}};
  for (std::size_t axis = 0; axis < kAxisSizes.size(); ++axis) {
    std::vector<Combination> longer;
    for (Combination combination : all) {
      for (combination[axis] = 0; combination[axis] < kAxisSizes[axis]; ++combination[axis])
        longer.push_back(combination);
    }
    all = std::move(longer);
  }
  return all;
}

// Takes whichever combination brings most new pairs, until none is missing.
std::vector<Combination> pairwise_cover() {
  const std::vector<Combination> all = full_product();
  std::set<Pair> missing;
  for (const Combination& combination : all) missing.merge(pairs_of(combination));
  std::vector<Combination> chosen;
  while (!missing.empty()) {
    const Combination* best = nullptr;
    std::size_t most = 0;
    for (const Combination& combination : all) {
      std::size_t fresh = 0;
      for (const Pair& pair : pairs_of(combination)) fresh += missing.count(pair);
      if (fresh > most) {
        most = fresh;
        best = &combination;
      }
    }
    for (const Pair& pair : pairs_of(*best)) missing.erase(pair);
    chosen.push_back(*best);
  }
  return chosen;
}

}  // namespace facet::test
