// The comparison as one JSON document and as a table. The schema is described in docs/comparison.md.
#pragma once

#include "ab_activation.h"

namespace facet::cli {

Json ab_json(const std::vector<AbVariant>& variants, const std::vector<std::size_t>& order, const AbOptions& options);
// For people: takes its figures from the document of ab_json(), so that both always say the same.
void print_ab(const Json& document);

}  // namespace facet::cli
