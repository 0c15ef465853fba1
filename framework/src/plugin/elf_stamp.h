// Reads the build stamp of a shared library without loading it, so that nothing of a wrong library ever runs.
#pragma once

#include <filesystem>
#include <string>

namespace facet {

// Text of the section abi::kStampSection up to its NUL, starting with abi::kStampMagic. Checks on the way that the file
// exists, is a regular, readable, complete ELF shared object for this processor. Trusts no offset of the file: every
// range is held against its size, and the segments that the loader will map too, because mapping a cut file ends in
// SIGBUS. Throws Error(plugin) that names the file, what it has, what is needed and the cure.
std::string read_stamp(const std::filesystem::path& file);

}  // namespace facet
