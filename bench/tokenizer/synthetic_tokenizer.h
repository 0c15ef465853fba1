// A tokenizer.json of Gemma's size and structure, made up.
#pragma once

#include <filesystem>

namespace facet::bench {

struct SyntheticSize {
  int tokens;
  int merges;
};

// Writes the file and returns what it holds: 262,144 tokens and about 500,000 merges. Every token that is not special,
// a byte or a character is joined from two others by at least one merge, as in a trained file. Same file for the same
// seed.
SyntheticSize write_synthetic_tokenizer(const std::filesystem::path& path, unsigned seed);

}  // namespace facet::bench
