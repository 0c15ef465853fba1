// What the schedulers ask about a sequence, in one place.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string_view>

#include "facet/sdk/scheduler.h"

namespace facet::scheduler {

inline constexpr const char* kOrders[] = {"arrival", "length"};

inline constexpr std::uint32_t kAllDevices =
    static_cast<std::uint32_t>(abi::Device::cpu) | static_cast<std::uint32_t>(abi::Device::cuda);

inline bool is_running(const abi::SequenceView& sequence) {
  return sequence.state == abi::SequenceState::running;
}

// Decoding: everything but the token sampled last has its row. Anything else is prefill, also the recomputation of
// generated tokens after a preemption.
inline bool is_decoding(const abi::SequenceView& sequence) {
  return is_running(sequence) && sequence.pending_tokens == 1 && sequence.generated_tokens > 0;
}

// Most tokens of the sequence that one step may take.
inline std::int64_t chunk(const abi::SequenceView& sequence, const abi::SchedulerView& view) {
  return std::min(sequence.pending_tokens, view.max_chunk);
}

}  // namespace facet::scheduler
