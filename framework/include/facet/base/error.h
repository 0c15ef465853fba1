// The one exception type of the framework: a kind, a message, and the places it passed through.
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace facet {

// What a caller can do about an error decides its kind; the program's exit code follows from it.
enum class ErrorKind {
  usage,       // wrong command line or request            -> exit 2
  config,      // wrong TOML                               -> exit 2
  plugin,      // a plugin was refused or failed at start  -> exit 3
  checkpoint,  // model files were refused                 -> exit 3
  request,     // one request cannot be served             -> exit 1
  run,         // the run failed                           -> exit 1
};

// Process exit code for a kind, as listed above.
int exit_code(ErrorKind kind) noexcept;
const char* to_string(ErrorKind kind) noexcept;

class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, std::string message) : std::runtime_error(message), kind_(kind), message_(std::move(message)) {}

  ErrorKind kind() const noexcept { return kind_; }
  // The message without the context lines.
  const std::string& message() const noexcept { return message_; }
  // Adds where it happened, innermost first, e.g. "while planning layer 17 (global attention)".
  Error& add_context(std::string place) {
    context_.push_back(std::move(place));
    return *this;
  }
  const std::vector<std::string>& context() const noexcept { return context_; }
  // Message followed by one indented line for each context entry.
  std::string full_text() const;

 private:
  ErrorKind kind_;
  std::string message_;
  std::vector<std::string> context_;
};

// throw_error(ErrorKind::config, "{}: unknown key '{}'", file, key)
template <typename... Args>
[[noreturn]] void throw_error(ErrorKind kind, fmt::format_string<Args...> format, Args&&... args) {
  throw Error(kind, fmt::format(format, std::forward<Args>(args)...));
}

// Collects every problem found so that all are reported at once; throws when there is any.
class Problems {
 public:
  template <typename... Args>
  void add(fmt::format_string<Args...> format, Args&&... args) {
    lines_.push_back(fmt::format(format, std::forward<Args>(args)...));
  }
  bool empty() const noexcept { return lines_.empty(); }
  const std::vector<std::string>& lines() const noexcept { return lines_; }
  // Throws Error(kind) whose message is `headline` and one line for each problem. No problem: returns.
  void throw_if_any(ErrorKind kind, const std::string& headline) const;

 private:
  std::vector<std::string> lines_;
};

}  // namespace facet
