#include "module_patterns.h"

#include <algorithm>
#include <regex>

namespace facet::checkpoint_detail {
namespace {

// std::regex tries every way to match, so a checkpoint could hold patterns that take years. Returns what makes
// `pattern` (without "re:") one of them, or an empty text. A repeated group must hold neither a repetition nor a
// choice, and few repetitions may be open-ended, because the time grows with the length of a name to the power of their
// number.
std::string hostile_part(const std::string& pattern) {
  constexpr std::size_t kLongest = 512, kMostRepetitions = 6;
  if (pattern.size() > kLongest)
    return fmt::format("it has {} characters, at most {} are read", pattern.size(), kLongest);
  std::vector<bool> varies = {false};  // for every open group: holds a repetition or a choice
  std::size_t repetitions = 0;
  bool after_varying_group = false;
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    const bool repeats = c == '*' || c == '+' || c == '{';
    if (repeats && after_varying_group) return "a repeated group holds a repetition or a choice";
    after_varying_group = false;
    if (c == '\\') {
      ++i;
    } else if (c == '[') {
      // "]" ends the class wherever it stands, as in ECMAScript.
      while (++i < pattern.size() && pattern[i] != ']') i += pattern[i] == '\\' ? 1 : 0;
    } else if (c == '(') {
      varies.push_back(false);
      if (i + 1 < pattern.size() && pattern[i + 1] == '?') ++i;  // of (?:, (?= and (?!
    } else if (c == ')' && varies.size() > 1) {
      after_varying_group = varies.back();
      varies.pop_back();
      if (after_varying_group) varies.back() = true;
    } else if (repeats || c == '?' || c == '|') {
      varies.back() = true;
      if (repeats && ++repetitions > kMostRepetitions)
        return fmt::format("it has more than {} repetitions", kMostRepetitions);
    }
  }
  return {};
}

}  // namespace

void check_pattern(const std::string& pattern, const std::string& where, const std::string& written,
                   Problems& problems) {
  if (const std::string part = hostile_part(pattern); !part.empty()) {
    problems.add("{}: the pattern '{:.80}' could take too long to match: {}; write a simpler one", where, written,
                 part);
    return;
  }
  try {
    const std::regex compiled(pattern, std::regex::ECMAScript);
  } catch (const std::regex_error&) {
    problems.add("{}: '{}' is not a regular expression this reader knows (ECMAScript)", where, written);
  }
}

std::vector<std::string> spellings(std::string_view module) {
  constexpr std::string_view kNested = "model.language_model.", kFlat = "model.";
  std::vector<std::string> names = {std::string(module)};
  if (module.starts_with(kNested)) {
    names.push_back(std::string(kFlat) + std::string(module.substr(kNested.size())));
  } else if (module.starts_with(kFlat)) {
    names.push_back(std::string(kNested) + std::string(module.substr(kFlat.size())));
  }
  return names;
}

bool matches_start(const std::vector<std::string>& names, const std::string& pattern) {
  const std::regex compiled(pattern, std::regex::ECMAScript);
  return std::any_of(names.begin(), names.end(), [&](const std::string& name) {
    return std::regex_search(name, compiled, std::regex_constants::match_continuous);
  });
}

}  // namespace facet::checkpoint_detail
