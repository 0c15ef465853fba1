// Linear kernels: y = x W^T with W in one of the formats of abi/weight.h.
#pragma once

#include "facet/abi/types.h"
#include "facet/abi/weight.h"

namespace facet::abi {

inline constexpr std::uint32_t kLinearInterfaceVersion = 1;

enum class LinearRole : std::uint32_t { other = 0, q, k, v, qkv, qk, o, gate, up, gate_up, down, head };

// Work around the product that a kernel may take into the same launch. A problem asks for a set of them, and a kernel
// takes all of them or refuses the problem; the host then does them in launches of its own.
enum LinearFusion : std::uint32_t {
  // The input is made on the fly from LinearArgs::residual: a normalised residual stream.
  kFuseResidualNorm = 1u << 0,
  // Role gate_up: output[r, i] = gelu_tanh(y[r, i]) * y[r, out_features / 2 + i] for i < out_features / 2.
  kFuseGeluGate = 1u << 1,
};

// What is asked of a kernel: everything that may change its answer or its plan.
struct LinearProblem {
  std::uint32_t size;
  Device device;
  WeightFormat weight;
  LinearRole role;
  std::int64_t out_features;  // of all parts together
  std::int64_t in_features;
  std::int64_t group_size;  // 0 for bf16
  std::uint32_t symmetric;  // 0 or 1; 1 for bf16
  DType input;              // element type of x
  DType output;             // element type of y
  std::int32_t layer;       // -1 for the output head
  std::int64_t min_rows;    // every run has min_rows <= rows <= max_rows
  std::int64_t max_rows;
  std::uint32_t fusions;  // bits of LinearFusion
  std::uint32_t reserved;
};

// Input of kFuseResidualNorm, rows of in_features without gaps:
//   h = hidden when update is null, else (hidden + rmsnorm(update) * post_norm) * scale
//   hidden_out = h;  x = rmsnorm(h) * next_norm, where rmsnorm(v) = v / sqrt(mean(v^2) + epsilon)
// hidden_out is not hidden: every block of a kernel may read hidden until the launch ends.
struct LinearResidual {
  std::uint32_t size;
  float epsilon;
  float scale;
  std::uint32_t reserved;
  const float* hidden;     // [rows, in_features]
  const void* update;      // [rows, in_features] of LinearProblem::input, or null
  const float* post_norm;  // [in_features]; null when update is
  const float* next_norm;  // [in_features]
  float* hidden_out;       // [rows, in_features]; may be null when update is
};

// What the blocks of one launch tell each other, in the memory of the problem's device.
inline constexpr std::uint64_t kCounterBytes = 64;

struct LinearPlan {
  std::uint32_t size;
  std::uint32_t reserved;
  void* handle;                    // the kernel's own; dies in release()
  std::uint64_t workspace_bytes;   // needed by every run of this plan, 64-byte aligned
  std::uint64_t packed_bytes;      // 0: runs read the weight views in place
  std::uint64_t packed_alignment;  // power of two; 0 when packed_bytes is 0
  // Name of the packed form, "" when packed_bytes is 0. Plans with equal name and equal packed_bytes for the same
  // weights share one packed copy, whichever plugin made it, so the name must say everything that decides the bytes.
  char layout[64];
};

struct LinearArgs {
  std::uint32_t size;
  std::uint32_t part_count;
  Stream stream;
  std::int64_t rows;
  const void* input;           // [rows, in_features], row stride input_stride; null with kFuseResidualNorm
  std::int64_t input_stride;   // elements
  void* output;                // [rows, out_features], row stride output_stride
  std::int64_t output_stride;  // elements
  const void* packed;          // packed_bytes as pack() left them; null when packed_bytes is 0
  const WeightView* parts;     // the weights stacked along out_features; only for plans that read in place
  Memory workspace;
  const LinearResidual* residual;  // in host memory, null without kFuseResidualNorm
  void* counters;                  // kCounterBytes beside the workspace, 64-byte aligned; zero before and after a run
};

// supports() and plan() share one predicate: plan() of a problem that supports() accepts succeeds unless memory is
// short.
class Linear {
 public:
  // 1 when the kernel takes the problem, else 0 with every reason written to `reasons`.
  virtual std::uint32_t supports(const LinearProblem& problem, TextSink reasons) const noexcept = 0;
  // Decides and sizes; may be slow. Fills *plan.
  virtual Status plan(const LinearProblem& problem, LinearPlan* plan, TextSink error) noexcept = 0;
  // Writes the packed form of the parts, stacked along out_features in order; sum of out_features equals the problem's.
  // Called once for each packed copy, only when packed_bytes > 0. packed.bytes >= packed_bytes. The parts lie in host
  // memory, `packed` in the memory of the problem's device; it is complete when the call returns.
  virtual Status pack(const LinearPlan& plan, const WeightView* parts, std::uint32_t part_count, Memory packed,
                      TextSink error) noexcept = 0;
  // Launches only: no allocation, no lock, no log, no environment, no synchronisation. Reads no element past the
  // shapes.
  virtual Status run(const LinearPlan& plan, const LinearArgs& args, TextSink error) noexcept = 0;
  virtual void release(LinearPlan* plan) noexcept = 0;

 protected:
  ~Linear() = default;
};

}  // namespace facet::abi
