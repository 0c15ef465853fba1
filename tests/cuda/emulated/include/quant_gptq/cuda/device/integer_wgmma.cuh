// What the header of this name does, by the emulated machine.
#pragma once

#include "emulated/device_code.h"

namespace facet::linear {

template <bool SIGNED, bool ADD>
struct IntegerWgmma16 {
  static void run(int (&d)[8], const std::uint32_t (&a)[4], std::uint32_t columns) {
    emulated::product(SIGNED ? emulated::Elements::s8 : emulated::Elements::u8, 16, d, a,
                      std::uint64_t{cuda::kWgmmaMatrixHigh} << 32 | columns, ADD);
  }
};

}  // namespace facet::linear
