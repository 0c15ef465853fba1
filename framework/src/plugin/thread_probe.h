// How many threads the system gives this process.
#pragma once

#include <cstdint>

namespace facet {

// Throws Error(run) with the cures unless `count` more threads can live at the same time. TBB starts its threads on
// threads of its own, where a refusal of the system ends the process: so the same number is started here first, waits
// until the last one is there, and is gone again on return. 20 to 60 us a thread on 2 busy cores of an EPYC.
void require_threads(std::uint32_t count);

}  // namespace facet
