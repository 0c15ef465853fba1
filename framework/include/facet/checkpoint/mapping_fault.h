// A mapped checkpoint that somebody shortens: the system then sends SIGBUS, which says nothing to anybody.
#pragma once

#include <cstddef>
#include <string>

namespace facet {

// From now on a program that touches a mapped file where it no longer has bytes ends with one line on stderr that names
// the file, and exit code 3. Any other SIGBUS ends it as before. For the program's main().
void report_mapping_faults();

// The mapping at `begin` is of `file`, until it is removed. Thread-safe. Past the first 4096 mappings of a process
// nothing is noted.
void note_mapping(const std::byte* begin, std::size_t size, const std::string& file);
void forget_mapping(const std::byte* begin) noexcept;

}  // namespace facet
