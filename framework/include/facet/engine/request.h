// What is asked of the engine, and what comes back.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "facet/sampling/sampler.h"

namespace facet {

struct Request {
  std::vector<std::int32_t> prompt;
  std::int64_t max_tokens = 16;  // 0: only prefill
  SamplingParams sampling;
  std::int32_t priority = 0;    // higher goes first
  std::int64_t arrival_us = 0;  // on the engine's clock; the engine does not look at it earlier
  std::vector<std::int32_t> stop_ids;
  std::uint64_t salt = 0;  // prefixes are shared only between equal salts
  // Teacher forcing: generated token i is forced[i] whatever the logits say.
  std::vector<std::int32_t> forced;
  // Negative log-likelihood of every known next token (prompt and forced). Turns prefix reuse off, since every row is
  // needed.
  bool score = false;
};

enum class FinishReason { length, stop, cancelled, error };
const char* to_string(FinishReason reason) noexcept;

struct RequestResult {
  std::uint64_t id = 0;
  std::vector<std::int32_t> prompt;
  std::vector<std::int32_t> ids;  // generated; ends with the stop id when finish_reason is stop
  FinishReason finish_reason = FinishReason::length;
  std::string error;        // when finish_reason is error
  std::vector<double> nll;  // with Request::score: one for each prediction, in order
  std::int64_t arrival_us = 0;
  std::int64_t finish_us = 0;
  std::vector<std::int64_t> token_us;  // when each id was known
  std::int64_t cached_tokens = 0;      // prompt tokens taken from the cache at first admission
  std::int64_t preemptions = 0;

  double ttft_ms() const;                      // 0 when nothing was generated
  std::vector<double> inter_token_ms() const;  // one less than ids
};

}  // namespace facet
