#include "facet/base/program.h"

#include <cstdlib>

namespace facet {

namespace fs = std::filesystem;

fs::path program_folder() {
  std::error_code ignored;
  return fs::read_symlink("/proc/self/exe", ignored).parent_path();
}

fs::path library_of_program(const char* variable, const char* name) {
  if (const char* named = std::getenv(variable); named != nullptr && *named != '\0') return named;
  return (program_folder() / ".." / "lib" / "facet" / name).lexically_normal();
}

}  // namespace facet
