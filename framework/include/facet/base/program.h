// Where the running program lies: what belongs to it is found beside it, not in the working directory.
#pragma once

#include <filesystem>

namespace facet {

// Folder of the running program; empty when the system does not say.
std::filesystem::path program_folder();

// The file that the environment variable names, else lib/facet/`name` beside the program's own folder.
std::filesystem::path library_of_program(const char* variable, const char* name);

}  // namespace facet
