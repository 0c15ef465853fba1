// What the header of this name does, by the emulated machine.
#pragma once

#include "machine.h"
#include "quant_gptq/cuda/device/ptx.cuh"

namespace facet::linear {

inline void counter_add(unsigned* counter) {
  ++*counter;
}
// A cluster runs when those before it have ended, so a counter that is waited for changes at once or never.
inline unsigned counter_read(const unsigned* counter) {
  constexpr int kMostReads = 1000;
  static const unsigned* last = nullptr;
  static unsigned value = 0;
  static int reads = 0;
  reads = counter == last && *counter == value ? reads + 1 : 0;
  last = counter;
  value = *counter;
  if (reads > kMostReads) throw emulated::Fault("a block waits for a counter that stays " + std::to_string(value));
  return value;
}
inline unsigned counter_next(unsigned* counter) {
  return (*counter)++;
}

}  // namespace facet::linear
