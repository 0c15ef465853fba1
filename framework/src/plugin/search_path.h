// Where plugins are looked for.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace facet {

struct SearchPlace {
  std::filesystem::path directory;  // absolute
  std::string origin;               // "config or --plugin-dir", "FACET_PLUGIN_PATH", "beside the program"
};

// `extra`, then the entries of FACET_PLUGIN_PATH, then <folder of the program>/../lib/facet/plugins; each folder once,
// at its first place. Relative entries of `extra` come from a command line and mean the working directory at this
// moment; relative entries of FACET_PLUGIN_PATH are refused with Error(plugin), empty ones are skipped.
std::vector<SearchPlace> search_places(const std::vector<std::filesystem::path>& extra);

// Every *.so of the folder by name; none when it does not exist or cannot be read.
std::vector<std::filesystem::path> libraries_in(const std::filesystem::path& directory);

}  // namespace facet
