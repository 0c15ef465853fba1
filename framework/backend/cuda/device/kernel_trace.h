// When each kernel ran, from NVIDIA's profiling library, which is opened at the first use: nothing else needs it.
#pragma once

#include "device_api.h"

namespace facet::cuda {

// From begin to end every kernel of the process is noted. Not reentrant.
abi::Status begin_kernel_trace(abi::TextSink error) noexcept;
// Everything queued must have ended. Calls `note` for each kernel, in the order of their ends.
abi::Status end_kernel_trace(NoteKernel note, void* context, abi::TextSink error) noexcept;

}  // namespace facet::cuda
