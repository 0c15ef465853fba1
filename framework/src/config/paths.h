// Paths of the file, resolved without the working directory.
#pragma once

#include <filesystem>

namespace facet::config {

// `path` as seen from `base`. Only leading ".." are taken away: behind a name that may be a symlink, "name/.." is left
// for the system to walk.
std::filesystem::path resolved(const std::filesystem::path& base, const std::filesystem::path& path);

}  // namespace facet::config
