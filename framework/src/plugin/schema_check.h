// Is the option schema of a plugin well formed?
#pragma once

#include <string>

#include "facet/abi/plugin.h"
#include "facet/base/error.h"

namespace facet {

// Small letters, digits and '_', starting with a letter, at most 64 characters.
bool is_snake_case(const std::string& text);
// Text of a plugin, cut at 4,096 characters; `text` is not null.
std::string bounded_text(const char* text);

// Adds a line for everything wrong with the schema: texts, names (snake_case, unique), types, ranges, choices,
// defaults.
void check_schema(const abi::PluginDescriptor& descriptor, Problems& problems);

}  // namespace facet
