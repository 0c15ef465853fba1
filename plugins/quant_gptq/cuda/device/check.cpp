#include "quant_gptq/cuda/device/check.h"

#include "common/checks.h"
#include "facet/sdk/cuda/no_gpu.h"

namespace facet::linear {

void probe_device(sdk::Reasons& reasons) {
  const std::string missing = sdk::why_no_gpu();
  reasons.require(missing.empty(), missing);
  if (!missing.empty()) return;
  int count = 0;
  cudaGetDeviceCount(&count);  // an error leaves none, which is said below
  std::string seen;
  for (int device = 0; device < count; ++device) {
    int major = 0;
    int minor = 0;
    if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) != cudaSuccess) continue;
    if (cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) != cudaSuccess) continue;
    if (major == 9 && minor == 0) return;
    seen += sdk::concat(seen.empty() ? "" : ", ", major, ".", minor);
  }
  reasons.require(false, "the kernels need a device of compute capability 9.0 (H100, H200), this machine has ",
                  seen.empty() ? std::string("none") : seen);
}

bool device_here() {
  static const bool here = [] {
    sdk::Reasons reasons({nullptr, [](void*, const char*, std::uint64_t) {}});
    probe_device(reasons);
    return reasons.ok();
  }();
  return here;
}

void check_cuda_problem(const abi::LinearProblem& problem, const CudaFormats& formats, sdk::Reasons& reasons) {
  reasons.require(problem.device == abi::Device::cuda, "device is ", sdk::to_string(problem.device),
                  ", this plugin runs on cuda");
  const bool integer = problem.weight == abi::WeightFormat::int8 || problem.weight == abi::WeightFormat::int4;
  const bool known = (problem.weight == abi::WeightFormat::bf16 && formats.bf16) ||
                     (problem.weight == abi::WeightFormat::int8 && formats.int8) ||
                     (problem.weight == abi::WeightFormat::int4 && formats.int4);
  reasons.require(known, "weights are ", sdk::to_string(problem.weight), ", this plugin takes",
                  formats.bf16 ? " bf16" : "", formats.int8 ? " int8" : "", formats.int4 ? " int4" : "");
  reasons.require(problem.input == abi::DType::bf16, "input is ", sdk::to_string(problem.input),
                  ", this plugin takes bf16");
  reasons.require(problem.output == abi::DType::bf16 || problem.output == abi::DType::f32, "output is ",
                  sdk::to_string(problem.output), ", this plugin writes bf16 or f32");
  reasons.require(problem.in_features >= 1, "in_features is ", problem.in_features, ", it must be at least 1");
  reasons.require(problem.out_features >= 1, "out_features is ", problem.out_features, ", it must be at least 1");
  reasons.require(problem.min_rows >= 1 && problem.min_rows <= problem.max_rows, "rows ", problem.min_rows, "..",
                  problem.max_rows, " is not a range of at least 1 row");
  if (!integer) return;
  reasons.require(problem.group_size >= 1, "group_size is ", problem.group_size, ", it must be at least 1");
  if (problem.group_size >= 1) check_group(problem, reasons);
}

void check_rows32_problem(const abi::LinearProblem& problem, sdk::Reasons& reasons) {
  check_cuda_problem(problem, {.int8 = true, .int4 = true}, reasons);
  reasons.require(problem.weight != abi::WeightFormat::int8 || problem.symmetric != 0,
                  "int8 weights are asymmetric, this plugin takes symmetric ones");
  if ((problem.fusions & abi::kFuseGeluGate) != 0)
    reasons.require(problem.role == abi::LinearRole::gate_up && problem.out_features % 2 == 0,
                    "the GELU gate is fused for role gate_up with an even out_features, this one has ",
                    problem.out_features);
}

void check_cuda_run(const abi::LinearProblem& problem, const abi::LinearArgs& args, std::uint64_t workspace_bytes) {
  check_run(args, problem.max_rows, workspace_bytes);
  if (args.rows < problem.min_rows)
    sdk::fail(abi::Status::invalid_argument, "a run of ", args.rows, " rows on a plan for at least ", problem.min_rows);
  const bool fused = (problem.fusions & abi::kFuseResidualNorm) != 0;
  if (fused && args.residual == nullptr)
    sdk::fail(abi::Status::invalid_argument, "the plan fuses the residual norm, the run has no residual");
  if (!fused && args.input == nullptr) sdk::fail(abi::Status::invalid_argument, "the run has no input");
}

}  // namespace facet::linear
