// Patterns of module names as quantizers write them into config.json.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "facet/base/error.h"

namespace facet::checkpoint_detail {

// Adds a problem that starts with `where` and shows `written` when `pattern`, a regular expression, is none that
// std::regex knows or one that could take years to match.
void check_pattern(const std::string& pattern, const std::string& where, const std::string& written,
                   Problems& problems);

// Every spelling of a module's name that a tool may have written into patterns: as given first, then with
// "model.language_model." and "model." exchanged.
std::vector<std::string> spellings(std::string_view module);

// As Python's re.match: true when the pattern matches one of `names` from its start, not necessarily to its end.
bool matches_start(const std::vector<std::string>& names, const std::string& pattern);

}  // namespace facet::checkpoint_detail
