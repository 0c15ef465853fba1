#include "plugin/search_path.h"

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "facet/base/error.h"
#include "facet/base/program.h"

namespace facet {

namespace fs = std::filesystem;

namespace {

// The same folder under two spellings is one place.
fs::path resolved(const fs::path& directory) {
  std::error_code ignored;
  const fs::path canonical = fs::weakly_canonical(directory, ignored);
  return ignored ? directory.lexically_normal() : canonical;
}

void add_place(std::vector<SearchPlace>& places, const fs::path& directory, const char* origin) {
  fs::path folder = resolved(directory);
  if (!folder.has_filename()) folder = folder.parent_path();
  const auto same = [&](const SearchPlace& place) { return place.directory == folder; };
  if (std::none_of(places.begin(), places.end(), same)) places.push_back({folder, origin});
}

}  // namespace

std::vector<SearchPlace> search_places(const std::vector<fs::path>& extra) {
  std::vector<SearchPlace> places;
  for (const fs::path& directory : extra) {
    if (!directory.empty()) add_place(places, fs::absolute(directory), "config or --plugin-dir");
  }
  const char* variable = std::getenv("FACET_PLUGIN_PATH");
  std::string_view rest = variable == nullptr ? "" : variable;
  while (!rest.empty()) {
    const std::string_view entry = rest.substr(0, rest.find(':'));
    rest.remove_prefix(std::min(rest.size(), entry.size() + 1));
    if (entry.empty()) continue;
    if (entry[0] != '/')
      throw_error(ErrorKind::plugin,
                  "FACET_PLUGIN_PATH: entry '{}' is relative, needed are absolute folders, so that the plugins do not "
                  "depend on the working directory; write the full path",
                  entry);
    add_place(places, fs::path(entry), "FACET_PLUGIN_PATH");
  }
  const fs::path program = program_folder();
  if (!program.empty()) add_place(places, program / ".." / "lib" / "facet" / "plugins", "beside the program");
  return places;
}

std::vector<fs::path> libraries_in(const fs::path& directory) {
  std::vector<fs::path> files;
  std::error_code error;
  for (fs::directory_iterator entry(directory, error), end; !error && entry != end; entry.increment(error)) {
    if (entry->path().extension() == ".so") files.push_back(entry->path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace facet
