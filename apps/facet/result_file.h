// Files that hold what took long to measure: checked before, and the old one stays until the new one is whole.
#pragma once

#include <filesystem>
#include <string>

namespace facet::cli {

// Throws Error(usage) naming `option` and the system's reason when `file` cannot be written. Changes nothing.
void check_result_file(const char* option, const std::filesystem::path& file);
// Writes all of `text` or leaves the file as it was; what is no regular file, a pipe for example, is written to. Throws
// Error(run) naming `option` and the system's reason.
void write_result_file(const char* option, const std::filesystem::path& file, const std::string& text);

}  // namespace facet::cli
