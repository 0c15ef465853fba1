// Instructions for which lanes of a warp come together.
#include <cstring>

#include "instructions.h"
#include "state.h"

namespace facet::emulated {

namespace {

std::string describe_meeting(const Thread& thread) {
  for (const Meeting& meeting : thread.warp->meetings) {
    if ((meeting.arrived >> thread.lane & 1) == 0) continue;
    return std::string("waits for the lanes ") + std::to_string(meeting.mask & ~meeting.arrived) + " (a mask) at " +
           meeting.instruction;
  }
  return "waits for its warp";
}

struct Exchange {
  std::uint32_t value;
  int source;  // lane
  std::uint32_t result;
};

struct Vote {
  bool predicate;
  std::uint32_t result;
};

}  // namespace

void meet(std::uint32_t mask, const char* instruction, std::uint64_t operand, void* data,
          const std::function<void(const std::array<void*, kLanes>&)>& act) {
  Thread& thread = self();
  Warp& warp = *thread.warp;
  if ((mask >> thread.lane & 1) == 0) fail(std::string(instruction) + " by a lane that its mask leaves out");
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    if ((mask >> lane & 1) == 0) continue;
    if (warp.lanes[lane] == nullptr || warp.lanes[lane]->done)
      fail(std::string(instruction) + " with lane " + std::to_string(lane) + ", which has ended");
  }
  auto meeting = warp.meetings.begin();
  while (meeting != warp.meetings.end() && (meeting->mask & mask) == 0) ++meeting;
  if (meeting == warp.meetings.end()) {
    meeting = warp.meetings.insert(meeting, Meeting{mask, instruction, operand});
  } else if (meeting->mask != mask || std::strcmp(meeting->instruction, instruction) != 0 ||
             meeting->operand != operand) {
    fail(std::string(instruction) + " where others of the warp are at " + meeting->instruction +
         (meeting->operand != operand ? " with other operands" : ""));
  }
  meeting->data[static_cast<std::size_t>(thread.lane)] = data;
  meeting->arrived |= 1u << thread.lane;
  if (meeting->arrived != mask) {
    wait_for(describe_meeting);
    return;
  }
  const Meeting complete = *meeting;
  warp.meetings.erase(meeting);
  act(complete.data);
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    if ((mask >> lane & 1) != 0 && warp.lanes[lane] != &thread) wake(*warp.lanes[lane]);
  }
  maybe_yield();
}

void warp_sync(std::uint32_t mask) {
  meet(mask, "__syncwarp", 0, nullptr, [](const auto&) {});
}

std::uint32_t shuffle(std::uint32_t mask, std::uint32_t value, Shuffle kind, int operand) {
  const int lane = self().lane;
  int source = kind == Shuffle::index ? operand & 31 : kind == Shuffle::down ? lane + operand : lane ^ operand;
  if (source < 0 || source >= kLanes) source = lane;
  if ((mask >> source & 1) == 0) fail("a shuffle from lane " + std::to_string(source) + ", which its mask leaves out");
  Exchange own{value, source, 0};
  meet(mask,
       kind == Shuffle::index  ? "__shfl_sync"
       : kind == Shuffle::down ? "__shfl_down_sync"
                               : "__shfl_xor_sync",
       0, &own, [&](const std::array<void*, kLanes>& lanes) {
         for (void* each : lanes) {
           if (each == nullptr) continue;
           auto* exchange = static_cast<Exchange*>(each);
           exchange->result = static_cast<const Exchange*>(lanes[static_cast<std::size_t>(exchange->source)])->value;
         }
       });
  return own.result;
}

std::uint32_t ballot(std::uint32_t mask, bool predicate) {
  Vote own{predicate, 0};
  meet(mask, "a vote", 0, &own, [](const std::array<void*, kLanes>& lanes) {
    std::uint32_t votes = 0;
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      if (lanes[lane] != nullptr && static_cast<const Vote*>(lanes[lane])->predicate) votes |= 1u << lane;
    }
    for (void* each : lanes) {
      if (each != nullptr) static_cast<Vote*>(each)->result = votes;
    }
  });
  return own.result;
}

}  // namespace facet::emulated
