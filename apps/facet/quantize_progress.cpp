#include "quantize_progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>

namespace facet::cli {

QuantizeProgressLine::QuantizeProgressLine(double total_cost)
    : total_(total_cost), terminal_(isatty(STDERR_FILENO) != 0) {}

QuantizeProgressLine::~QuantizeProgressLine() {
  if (shown_) std::fputs("\r\033[K", stderr);
}

void QuantizeProgressLine::now(const std::string& what) {
  what_ = what;
  show();
}

void QuantizeProgressLine::add(double cost) {
  done_ += cost;
  show();
}

void QuantizeProgressLine::skip(double cost) {
  skipped_ += cost;
  show();
}

void QuantizeProgressLine::show() {
  if (!terminal_) return;
  std::string line = fmt::format("\r\033[Kquantizing {}, {:.0f} %", what_, 100 * (done_ + skipped_) / total_);
  const double elapsed = std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  if (done_ > 0) {
    const auto left = static_cast<std::int64_t>(elapsed / done_ * std::max(0.0, total_ - done_ - skipped_));
    line += fmt::format(", {}:{:02} left", left / 60, left % 60);
  }
  shown_ = true;
  std::fputs(line.c_str(), stderr);
  std::fflush(stderr);
}

}  // namespace facet::cli
