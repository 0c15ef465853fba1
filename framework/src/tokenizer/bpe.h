// Byte-pair encoding of one piece of normalised text.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "pair_table.h"

namespace facet {

// Ids of single characters by code point: pages of 256, so the table stays small although code points reach 1.1
// million.
class CharacterIds {
 public:
  CharacterIds() : pages_(0x110000 >> 8, 0), ids_(256, -1) {}
  void set(char32_t code_point, std::int32_t id);
  // Id or -1. `code_point` must be below 0x110000.
  std::int32_t operator[](char32_t code_point) const {
    return ids_[static_cast<std::size_t>(pages_[code_point >> 8]) * 256 + (code_point & 0xFF)];
  }

 private:
  std::vector<std::uint16_t> pages_;  // index of the page in ids_; 0 is the shared empty one
  std::vector<std::int32_t> ids_;
};

struct Bpe {
  CharacterIds characters;
  // Ids of <0x00> .. <0xFF>; used only where all bytes of a character have one.
  std::array<std::int32_t, 256> byte_ids{};
  bool byte_fallback = false;
  bool fuse_unknown = false;
  std::int32_t unknown_id = -1;
  // Merges, and for two characters that stand side by side inside some merge an entry without rank. Where the table has
  // no entry no merge can cross, so the text is cut there: short pieces stay in the fastest cache and need no heap.
  PairTable pairs;
  // False when merges join byte or unknown tokens, whose neighbours the table does not list: then nothing is cut.
  bool cut_between = true;

  // Appends the ids of `text`, valid UTF-8 with fewer than 2^31 bytes.
  void encode(std::string_view text, std::vector<std::int32_t>& ids) const;

 private:
  void first_symbols(std::string_view text, std::vector<std::int32_t>& symbols) const;
};

// Code point of the character that `text` starts with, and its length in bytes; `text` must be valid UTF-8 and not
// empty.
struct CodePoint {
  char32_t value;
  std::size_t length;
};
CodePoint first_code_point(std::string_view text);

}  // namespace facet
