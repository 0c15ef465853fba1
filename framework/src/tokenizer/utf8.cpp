#include "facet/tokenizer/utf8.h"

#include <algorithm>

namespace facet {

namespace {

bool in_range(unsigned char byte, unsigned char low, unsigned char high) {
  return byte >= low && byte <= high;
}

// Length of the character and the range its second byte must lie in (Unicode, table 3-7); length 0 for a byte that
// starts none.
struct Lead {
  int length;
  unsigned char low;
  unsigned char high;
};

Lead lead_of(unsigned char byte) {
  if (byte < 0x80) return {1, 0, 0};
  if (in_range(byte, 0xC2, 0xDF)) return {2, 0x80, 0xBF};
  if (byte == 0xE0) return {3, 0xA0, 0xBF};
  if (byte == 0xED) return {3, 0x80, 0x9F};
  if (in_range(byte, 0xE1, 0xEF)) return {3, 0x80, 0xBF};
  if (byte == 0xF0) return {4, 0x90, 0xBF};
  if (in_range(byte, 0xF1, 0xF3)) return {4, 0x80, 0xBF};
  if (byte == 0xF4) return {4, 0x80, 0x8F};
  return {0, 0, 0};
}

}  // namespace

Utf8Step inspect_utf8(std::string_view bytes) {
  const Lead lead = lead_of(static_cast<unsigned char>(bytes[0]));
  if (lead.length == 0) return {Utf8Step::State::invalid, 0};
  const int present = static_cast<int>(std::min<std::size_t>(bytes.size(), static_cast<std::size_t>(lead.length)));
  for (int index = 1; index < present; ++index) {
    const auto byte = static_cast<unsigned char>(bytes[static_cast<std::size_t>(index)]);
    const bool fits = index == 1 ? in_range(byte, lead.low, lead.high) : in_range(byte, 0x80, 0xBF);
    if (!fits) return {Utf8Step::State::invalid, 0};
  }
  if (present < lead.length) return {Utf8Step::State::incomplete, 0};
  return {Utf8Step::State::complete, lead.length};
}

std::size_t find_invalid_utf8(std::string_view text) {
  std::size_t offset = 0;
  while (offset < text.size()) {
    if (static_cast<unsigned char>(text[offset]) < 0x80) {
      ++offset;
      continue;
    }
    const Utf8Step step = inspect_utf8(text.substr(offset));
    if (step.state != Utf8Step::State::complete) return offset;
    offset += static_cast<std::size_t>(step.length);
  }
  return std::string_view::npos;
}

}  // namespace facet
