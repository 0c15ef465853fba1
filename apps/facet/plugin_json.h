// Plugin descriptors as JSON and words, for `facet plugins` and `facet explain`.
#pragma once

#include "common.h"

namespace facet::cli {

inline constexpr abi::PluginKind kPluginKinds[] = {abi::PluginKind::linear, abi::PluginKind::attention,
                                                   abi::PluginKind::kv_cache, abi::PluginKind::scheduler};

// kind, name, version, summary, devices ("any" for a scheduler), phases and flags as words, build, file and file_hash.
Json plugin_json(const LoadedPlugin& plugin);
// [{name, type, default, min, max, choices, unit, summary}] in the order of the schema.
Json option_schema_json(const abi::PluginDescriptor& descriptor);
// Texts of a JSON array with spaces between; "-" when it is empty.
std::string joined(const Json& texts);

}  // namespace facet::cli
