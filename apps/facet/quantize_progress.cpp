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

void QuantizeProgressLine::now(const std::string& what, const std::string& verb) {
  what_ = what;
  verb_ = verb;
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

std::string QuantizeProgressLine::line(const std::string& what) const {
  std::string line = fmt::format("{} {}, {:.0f} %", verb_, what, 100 * (done_ + skipped_) / total_);
  const double elapsed = std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  if (done_ > 0) {
    const auto left = static_cast<std::int64_t>(elapsed / done_ * std::max(0.0, total_ - done_ - skipped_));
    line += fmt::format(", {}:{:02} left", left / 60, left % 60);
  }
  return line;
}

void QuantizeProgressLine::show() {
  if (!terminal_) return show_in_log();
  shown_ = true;
  std::fputs(("\r\033[K" + line(what_)).c_str(), stderr);
  std::fflush(stderr);
}

void QuantizeProgressLine::show_in_log() {
  constexpr std::chrono::seconds kEvery(60);
  const std::string layer = what_.substr(0, what_.find(':'));
  const auto now = std::chrono::steady_clock::now();
  if (layer == logged_ && now - logged_at_ < kEvery) return;
  std::fputs((line(layer == logged_ ? what_ : layer) + "\n").c_str(), stderr);
  logged_ = layer;
  logged_at_ = now;
}

}  // namespace facet::cli
