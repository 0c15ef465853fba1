// Greedy ids can only be compared where the best logit leads clearly.
#pragma once

#include <gtest/gtest.h>

#include "reference_data.h"

namespace facet::test {

// ids equal `right` up to the first difference at which the reference's two best logits are at most `narrow` apart;
// behind such a difference the texts are two texts. At least one id must have been compared.
inline testing::AssertionResult equal_at_wide_gaps(const Ids& ids, const Ids& right, const std::vector<double>& gaps,
                                                   double narrow) {
  if (ids.size() != right.size())
    return testing::AssertionFailure() << ids.size() << " ids instead of " << right.size();
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] == right[i]) continue;
    if (gaps[i] <= narrow && i > 0) break;
    return testing::AssertionFailure() << "id " << i << " is " << ids[i] << " instead of " << right[i]
                                       << ", where the best logit leads by " << gaps[i];
  }
  return testing::AssertionSuccess();
}

}  // namespace facet::test
