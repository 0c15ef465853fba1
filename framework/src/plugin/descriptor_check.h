// Is the descriptor that a plugin returned one that this program understands?
#pragma once

#include <filesystem>
#include <string>

#include "facet/abi/plugin.h"

namespace facet {

// Throws Error(plugin) naming the file and every field that is wrong, with both values and the cure. `signature` is the
// build signature of the file's stamp. Size, contract and layout come first: after a mismatch there nothing else is
// read.
void check_descriptor(const std::filesystem::path& file, const abi::PluginDescriptor* descriptor,
                      const std::string& signature);

}  // namespace facet
