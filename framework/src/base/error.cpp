#include "facet/base/error.h"

namespace facet {

int exit_code(ErrorKind kind) noexcept {
  switch (kind) {
    case ErrorKind::usage:
    case ErrorKind::config:
      return 2;
    case ErrorKind::plugin:
    case ErrorKind::checkpoint:
      return 3;
    case ErrorKind::request:
    case ErrorKind::run:
      return 1;
  }
  return 1;
}

const char* to_string(ErrorKind kind) noexcept {
  switch (kind) {
    case ErrorKind::usage:
      return "usage";
    case ErrorKind::config:
      return "config";
    case ErrorKind::plugin:
      return "plugin";
    case ErrorKind::checkpoint:
      return "checkpoint";
    case ErrorKind::request:
      return "request";
    case ErrorKind::run:
      return "run";
  }
  return "unknown";
}

std::string Error::full_text() const {
  std::string text = message_;
  for (const std::string& place : context_) text += "\n  " + place;
  return text;
}

void Problems::throw_if_any(ErrorKind kind, const std::string& headline) const {
  if (lines_.empty()) return;
  std::string text = headline;
  for (const std::string& line : lines_) text += "\n  " + line;
  throw Error(kind, text);
}

}  // namespace facet
