#include "facet/engine/request.h"

namespace facet {

const char* to_string(FinishReason reason) noexcept {
  switch (reason) {
    case FinishReason::length:
      return "length";
    case FinishReason::stop:
      return "stop";
    case FinishReason::cancelled:
      return "cancelled";
    case FinishReason::error:
      return "error";
  }
  return "unknown";
}

double RequestResult::ttft_ms() const {
  return token_us.empty() ? 0.0 : static_cast<double>(token_us.front() - arrival_us) / 1000.0;
}

std::vector<double> RequestResult::inter_token_ms() const {
  std::vector<double> gaps;
  for (std::size_t i = 1; i < token_us.size(); ++i)
    gaps.push_back(static_cast<double>(token_us[i] - token_us[i - 1]) / 1000.0);
  return gaps;
}

}  // namespace facet
