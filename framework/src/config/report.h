// Mistakes of one file, in the order of their lines, thrown together.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "facet/base/error.h"

namespace facet::config {

class Report {
 public:
  // `file` is how messages name the file.
  explicit Report(std::string file) : file_(std::move(file)) {}

  void add(int line, std::string_view key_path, std::string_view text);
  bool empty() const { return entries_.empty(); }
  const std::string& file() const { return file_; }
  // Throws Error(config) with one line for each mistake, sorted by line, each distinct one once. No mistake: returns.
  void throw_if_any();

 private:
  struct Entry {
    int line;
    std::string text;
  };
  std::string file_;
  std::vector<Entry> entries_;
};

// "file:line: key.path: "; without the line when it is 0, without the path when it is empty.
std::string place(std::string_view file, int line, std::string_view key_path);
// The text in single quotes, control characters replaced by '?', cut to a length that fits a message.
std::string in_quotes(std::string_view text);
// "a, b, c"
std::string joined(const std::vector<std::string>& words);
// Lower case, '-' and ' ' as '_': two names that a reader would take for the same key fold to the same text.
std::string folded(std::string_view name);

}  // namespace facet::config
