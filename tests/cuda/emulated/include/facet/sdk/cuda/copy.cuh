// What the header of this name does, by the emulated machine.
#pragma once

#include "facet/sdk/cuda/async.cuh"

struct CUtensorMap_st;

namespace facet::cuda {

using emulated::bulk_copy;

inline std::uint64_t evict_first_policy() {
  return 1;
}
inline void bulk_copy(std::uint32_t target, const void* source, std::uint32_t bytes, std::uint32_t barrier,
                      std::uint64_t) {
  emulated::bulk_copy(target, source, bytes, barrier);
}

inline void tensor_copy(std::uint32_t target, const CUtensorMap_st& map, int x, int y, std::uint32_t barrier) {
  const int at[] = {x, y};
  emulated::tensor_copy(target, &map, at, 2, barrier);
}
inline void tensor_copy(std::uint32_t target, const CUtensorMap_st& map, int x, int y, int z, std::uint32_t barrier) {
  const int at[] = {x, y, z};
  emulated::tensor_copy(target, &map, at, 3, barrier);
}
inline void tensor_copy(std::uint32_t target, const CUtensorMap_st& map, int x, int y, int z, int w,
                        std::uint32_t barrier) {
  const int at[] = {x, y, z, w};
  emulated::tensor_copy(target, &map, at, 4, barrier);
}

}  // namespace facet::cuda
