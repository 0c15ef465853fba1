// Small text helpers shared by config, plugins and the command line.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace facet {

// Number of single-character insertions, deletions and replacements between a and b (Levenshtein), bytes as characters.
int edit_distance(std::string_view a, std::string_view b);
// The candidate closest to `word`, or "" when none is near enough (distance above a third of the longer word, at least
// 2).
std::string nearest_name(std::string_view word, const std::vector<std::string>& candidates);
// True when `text` matches `pattern`, where '*' stands for any run of characters and '?' for one. Whole text,
// case-sensitive.
bool glob_match(std::string_view pattern, std::string_view text);
// "1.50 GiB", "12.0 KiB", "17 B": binary units, three significant digits.
std::string format_bytes(std::uint64_t bytes);
// Deepest nesting of [ and { outside of strings in a JSON text, valid or not. Libraries recurse over values, so text of
// unknown origin is held to kMaxJsonDepth before it is parsed.
inline constexpr int kMaxJsonDepth = 100;
int json_depth(std::string_view text);
// 64-bit FNV-1a over bytes; `seed` chains calls. Not for untrusted equality checks.
std::uint64_t fnv1a(const void* data, std::size_t size, std::uint64_t seed = 0xcbf29ce484222325ull);

}  // namespace facet
