// Loops that callers may share out over threads.
#pragma once

#include "facet/quantizer/rtn.h"

namespace facet::quantizer {

inline void run(const ParallelFor& parallel, std::int64_t count,
                const std::function<void(std::int64_t begin, std::int64_t end)>& body) {
  if (parallel) {
    parallel(count, body);
  } else {
    body(0, count);
  }
}

}  // namespace facet::quantizer
