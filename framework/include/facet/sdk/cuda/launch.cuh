// Programmatic dependent launch: a kernel may begin while the one before it still runs. For device code.
#pragma once

namespace facet::cuda {

// Returns when every kernel before this one is complete and its writes are visible; rule 4.14 says what may be done
// before. Without programmatic launch it does nothing.
__device__ __forceinline__ void wait_for_predecessor() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}
// The next kernel may begin once every block of this one has said so or ended. It promises nothing about writes.
__device__ __forceinline__ void let_successor_begin() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

}  // namespace facet::cuda
