// What every CUDA linear plugin asks of the machine, of a problem and of a runtime call.
#pragma once

#include <cuda_runtime_api.h>

#include "facet/sdk/linear.h"

namespace facet::linear {

// Flags of abi::WeightFormat that a plugin takes.
struct CudaFormats {
  bool bf16 = false;
  bool int8 = false;
  bool int4 = false;
};

// Notes why this machine cannot run the kernels: no driver, no device, or none of compute capability 9.0.
void probe_device(sdk::Reasons& reasons);

// Whether probe_device() finds nothing to note; asked once a process. Without a device a plan has sizes and nothing
// else.
bool device_here();

// Device, element types, shapes, row range, weight format and grouping. Notes every reason against the problem.
void check_cuda_problem(const abi::LinearProblem& problem, const CudaFormats& formats, sdk::Reasons& reasons);

// The same for a kernel that multiplies with the packed form itself and fuses the GELU gate: int4, and symmetric int8.
void check_rows32_problem(const abi::LinearProblem& problem, sdk::Reasons& reasons);

// Throws when a run breaks its plan.
void check_cuda_run(const abi::LinearProblem& problem, const abi::LinearArgs& args, std::uint64_t workspace_bytes);

// Throws Failure with the runtime's text when `result` is an error; out of memory keeps its status.
inline void check_cuda(cudaError_t result, const char* what) {
  if (result == cudaSuccess) return;
  sdk::fail(result == cudaErrorMemoryAllocation ? abi::Status::out_of_memory : abi::Status::failed, what, ": ",
            cudaGetErrorString(result));
}

inline cudaStream_t stream_of(const abi::LinearArgs& args) {
  return static_cast<cudaStream_t>(args.stream.handle);
}

}  // namespace facet::linear
