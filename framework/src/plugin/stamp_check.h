// Holds the build stamp of a plugin against the one this program would have.
#pragma once

#include <filesystem>
#include <string>

namespace facet {

// Checks contract, layout and the enforced facts of the build (framework/README.md rule 2.3) of a stamp's text.
// Returns its build signature: what follows the layout. Throws Error(plugin) naming file, field, both values and cure.
std::string check_stamp(const std::filesystem::path& file, const std::string& text);

}  // namespace facet
