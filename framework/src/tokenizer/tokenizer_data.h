// Everything a loaded tokenizer.json comes to.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "added_tokens.h"
#include "bpe.h"
#include "token_table.h"

namespace facet {

struct Replacement {
  std::string pattern;
  std::string content;
};

// Replaces every occurrence, left to right without overlap, for one rule after the other.
std::string replace_all(std::string_view text, const std::vector<Replacement>& rules);

struct TokenizerData {
  TokenTable tokens;
  // By id: 1 for special tokens.
  std::vector<std::uint8_t> special;

  // Added tokens to look for in raw text: all of them, and only those that are not special.
  AddedTokens added;
  AddedTokens added_plain;
  std::vector<Replacement> normalizer;
  Bpe bpe;
  std::vector<std::int32_t> prefix;
  std::vector<std::int32_t> suffix;

  // By id: the text a token decodes to, after the decoder's replacements; and the byte of a byte token, -1 for others.
  std::string decoded_arena;
  std::vector<std::size_t> decoded_offsets;
  std::vector<std::int16_t> decoded_bytes;

  std::string_view decoded(std::int32_t id) const {
    const auto index = static_cast<std::size_t>(id);
    return std::string_view(decoded_arena)
        .substr(decoded_offsets[index], decoded_offsets[index + 1] - decoded_offsets[index]);
  }
  // Throws Error(request) when the tokenizer has no such id.
  void check_id(std::int32_t id) const;
};

}  // namespace facet
