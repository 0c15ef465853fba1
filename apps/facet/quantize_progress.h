// Progress of a long quantization with the time that is left.
#pragma once

#include <chrono>
#include <string>

namespace facet::cli {

// "quantizing layer 3 of 48 mlp.down_proj, 6 %, 12:40 left": a line on a terminal's stderr that is rewritten;
// elsewhere a line for each layer, and one a minute.
class QuantizeProgressLine {
 public:
  explicit QuantizeProgressLine(double total_cost);
  ~QuantizeProgressLine();
  QuantizeProgressLine(const QuantizeProgressLine&) = delete;
  QuantizeProgressLine& operator=(const QuantizeProgressLine&) = delete;

  // What is being done now; `verb` where it is not quantized.
  void now(const std::string& what, const std::string& verb = "quantizing");
  // Work that was done; `skipped` work cost no time and does not count for the speed.
  void add(double cost);
  void skip(double cost);

 private:
  void show();
  void show_in_log();
  std::string line(const std::string& what) const;

  double total_, done_ = 0, skipped_ = 0;
  std::string what_, verb_;
  std::string logged_;  // the layer of the last line that was not for a terminal
  std::chrono::steady_clock::time_point logged_at_ = std::chrono::steady_clock::now();
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  bool terminal_, shown_ = false;
};

}  // namespace facet::cli
