#include "plugin/stamp_check.h"

#include <charconv>
#include <cstring>
#include <string_view>

#include "facet/base/error.h"
#include "facet/sdk/export.h"

namespace facet {

namespace {

struct Fact {
  const char* key;
  const char* cure;
};

// Order of the checks. The compiler's name and version are for the reader only: the contract crosses no C++ type.
constexpr Fact kEnforced[] = {
    {"arch", "build the plugin for the processor of this program"},
    {"sanitizer", "build plugin and program with the same FACET_SANITIZE"},
    {"stdlib", "build plugin and program against the same C++ standard library"},
    {"containers", "build both with _GLIBCXX_DEBUG or both without"},
};

// Value of "key=value;" in a stamp, or "(absent)".
std::string value_of(std::string_view text, std::string_view key) {
  while (!text.empty()) {
    const std::string_view fact = text.substr(0, text.find(';'));
    if (fact.size() > key.size() && fact.substr(0, key.size()) == key && fact[key.size()] == '=')
      return std::string(fact.substr(key.size() + 1));
    text.remove_prefix(std::min(text.size(), fact.size() + 1));
  }
  return "(absent)";
}

void check_contract(const std::filesystem::path& file, const std::string& text) {
  const std::string theirs = value_of(text, "contract");
  const std::string ours = std::to_string(abi::kContractVersion);
  if (theirs == ours) return;
  std::uint32_t number = 0;
  const auto [end, error] = std::from_chars(theirs.data(), theirs.data() + theirs.size(), number);
  const bool newer = error == std::errc() && end == theirs.data() + theirs.size() && number > abi::kContractVersion;
  throw_error(
      ErrorKind::plugin, "{}: contract is {}, this program has {}; {}", file.string(), theirs, ours,
      newer ? "update this program, or get the plugin built for its contract" : "rebuild the plugin with its headers");
}

}  // namespace

std::string check_stamp(const std::filesystem::path& file, const std::string& text) {
  const std::string ours = sdk::make_stamp().text;
  check_contract(file, text);
  if (value_of(text, "layout") != value_of(ours, "layout"))
    throw_error(ErrorKind::plugin,
                "{}: layout is {}, this program has {}; rebuild the plugin with the headers of this "
                "program's version",
                file.string(), value_of(text, "layout"), value_of(ours, "layout"));
  std::string differences;
  for (const Fact& fact : kEnforced) {
    const std::string theirs = value_of(text, fact.key);
    const std::string wanted = value_of(ours, fact.key);
    if (theirs == wanted) continue;
    if (!differences.empty()) differences += "; ";
    differences += fmt::format("{} is {}, this program has {}; {}", fact.key, theirs, wanted, fact.cure);
  }
  if (!differences.empty()) throw_error(ErrorKind::plugin, "{}: {}", file.string(), differences);
  const std::size_t layout = text.find(";layout=") + 1;
  return text.substr(std::min(text.size(), text.find(';', layout) + 1));
}

}  // namespace facet
