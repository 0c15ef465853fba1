// UTF-8 checks (RFC 3629: no surrogates, no overlong forms, nothing above U+10FFFF).
#pragma once

#include <cstddef>
#include <string_view>

namespace facet {

// Byte offset of the first byte that does not belong to a complete valid character; std::string_view::npos when all do.
std::size_t find_invalid_utf8(std::string_view text);

// What the bytes at the start of `bytes` are: a whole character, the beginning of one, or neither.
struct Utf8Step {
  enum class State { complete, incomplete, invalid };
  State state;
  // Bytes of the character when complete; 0 otherwise.
  int length;
};
// `bytes` must not be empty; looks at no more than four.
Utf8Step inspect_utf8(std::string_view bytes);

}  // namespace facet
