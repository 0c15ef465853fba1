// Bounds that several parts hold to.
#pragma once

#include <cstdint>

namespace facet {

// Threads of a worker team, at most.
inline constexpr std::uint32_t kMostThreads = 1024;

}  // namespace facet
