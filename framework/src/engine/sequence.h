// One live request inside the engine.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "facet/abi/scheduler.h"
#include "facet/engine/engine.h"

namespace facet {

inline constexpr std::int32_t kUnknownToken = -1;

struct Engine::Sequence {
  Sequence(std::uint64_t id, Request asked, std::uint64_t seed)
      : request(std::move(asked)), sampler(request.sampling, seed) {
    tokens = request.prompt;
    result.id = id;
    result.prompt = request.prompt;
    result.arrival_us = request.arrival_us;
  }

  std::uint64_t id() const { return result.id; }
  std::int64_t prompt_tokens() const { return static_cast<std::int64_t>(result.prompt.size()); }
  std::int64_t generated() const { return static_cast<std::int64_t>(result.ids.size()) + (ahead ? 1 : 0); }
  std::int64_t pending() const { return static_cast<std::int64_t>(tokens.size()) - computed; }
  // Rows it will hold at most: its last token stores none.
  std::int64_t rows_needed() const {
    const std::int64_t generated_rows = std::max<std::int64_t>(request.max_tokens - 1, 0);
    const std::int64_t most = std::numeric_limits<std::int64_t>::max() - prompt_tokens();
    return prompt_tokens() + std::min(generated_rows, most);
  }
  bool decoding() const { return generated() > 0 && pending() == 1; }

  Request request;
  Sampler sampler;
  RequestResult result;
  std::vector<std::int32_t> tokens;  // prompt and generated
  bool ahead = false;                // the last of them is chosen but not known: kUnknownToken
  std::int64_t computed = 0;         // rows in the cache
  std::int64_t scored = 0;           // predictions already in result.nll, so a recomputation does not repeat them
  std::int64_t scheduled = 0;        // tokens of the current step
  abi::SequenceState state = abi::SequenceState::waiting;
  std::uint64_t last_step = 0;
  bool admitted = false;  // was running at least once
  bool done = false;
};

}  // namespace facet
