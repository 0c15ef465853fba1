#include "config/report.h"

#include <algorithm>
#include <cctype>
#include <set>

namespace facet::config {
namespace {

// A generated file can be wrong on every one of its lines; beyond this many nobody reads on.
constexpr std::size_t kMaxReported = 200;
constexpr std::size_t kMaxQuoted = 120;

}  // namespace

void Report::add(int line, std::string_view key_path, std::string_view text) {
  entries_.push_back({line, place(file_, line, key_path) + std::string(text)});
}

void Report::throw_if_any() {
  if (entries_.empty()) return;
  std::stable_sort(entries_.begin(), entries_.end(), [](const Entry& a, const Entry& b) { return a.line < b.line; });
  std::set<std::string_view> seen;
  std::vector<std::string_view> lines;
  for (const Entry& entry : entries_) {
    if (seen.insert(entry.text).second) lines.push_back(entry.text);
  }
  Problems problems;
  for (std::size_t i = 0; i < lines.size() && i < kMaxReported; ++i) problems.add("{}", lines[i]);
  if (lines.size() > kMaxReported) problems.add("... and {} more", lines.size() - kMaxReported);
  problems.throw_if_any(ErrorKind::config, fmt::format("{}: {} {} in the configuration", file_, lines.size(),
                                                       lines.size() == 1 ? "mistake" : "mistakes"));
}

std::string place(std::string_view file, int line, std::string_view key_path) {
  std::string text(file);
  if (line > 0) text += fmt::format(":{}", line);
  if (!text.empty()) text += ": ";
  if (!key_path.empty()) text.append(key_path).append(": ");
  return text;
}

std::string in_quotes(std::string_view text) {
  std::string result = "'";
  std::size_t end = std::min(text.size(), kMaxQuoted);
  // Never cut inside a UTF-8 sequence: its continuation bytes are 10xxxxxx.
  while (end < text.size() && end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  for (const char c : text.substr(0, end)) {
    const auto byte = static_cast<unsigned char>(c);
    result += byte < 0x20 || byte == 0x7F ? '?' : c;
  }
  if (end < text.size()) result += "...";
  return result + "'";
}

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
  return text;
}

std::string folded(std::string_view name) {
  std::string text(name);
  for (char& c : text) {
    if (c == '-' || c == ' ') {
      c = '_';
    } else if (c >= 'A' && c <= 'Z') {
      c = static_cast<char>(c - 'A' + 'a');
    }
  }
  return text;
}

}  // namespace facet::config
