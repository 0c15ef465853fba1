// linear/reference_cuda: dequantize the whole matrix to bf16 on every call, then multiply with cuBLAS. The baseline
// that everybody starts from; weights stay in canonical form on the device.
#include "common/checks.h"
#include "facet/sdk/numeric.h"
#include "quant_gptq/cuda/device/check.h"
#include "quant_gptq/cuda/device/cublas.h"
#include "quant_gptq/cuda/reference_cuda/dequant_rows.h"

namespace facet::linear {

namespace {

struct ReferencePlan {
  abi::LinearProblem problem;
  PlainWeights weights;  // without addresses
  std::int64_t stride;   // of dequantized rows
  std::int64_t scales_offset;
  std::int64_t zeros_offset;
  std::int64_t packed_bytes;
  std::uint64_t workspace_bytes;
};

}  // namespace

class ReferenceCuda final : public sdk::LinearBase<ReferencePlan> {
 public:
  static constexpr sdk::PluginInfo kInfo{
      .name = "reference_cuda",
      .version = "0.1.0",
      .summary = "dequantizes the whole matrix to bf16 on every call, then multiplies with cuBLAS; int8 and int4",
      .devices = static_cast<std::uint32_t>(abi::Device::cuda),
      .flags = abi::kGraphSafe | abi::kDeterministic | abi::kNeedsPack | abi::kPlansWithoutDevice};

  ReferenceCuda(sdk::Host, const sdk::OptionReader&) {}

  static void probe(sdk::Host, sdk::Reasons& reasons) {
    probe_device(reasons);
    probe_cublas(reasons);
  }

  void check(const abi::LinearProblem& problem, sdk::Reasons& reasons) const override {
    check_cuda_problem(problem, {.int8 = true, .int4 = true}, reasons);
  }

  std::unique_ptr<ReferencePlan> make_plan(const abi::LinearProblem& problem, abi::LinearPlan& sizes) override {
    if (device_here()) cublas_.open();
    auto plan = std::make_unique<ReferencePlan>();
    plan->problem = problem;
    PlainWeights& weights = plan->weights;
    const bool int4 = problem.weight == abi::WeightFormat::int4;
    weights = {.out_features = problem.out_features,
               .in_features = problem.in_features,
               .groups = sdk::ceil_div(problem.in_features, problem.group_size),
               .group_size = problem.group_size,
               .row_bytes = int4 ? sdk::ceil_div(problem.in_features, 8) * 4 : problem.in_features,
               .bits = int4 ? 4 : 8,
               .mean = int4 ? 8 : 128,
               .codes = nullptr,
               .scales = nullptr,
               .zeros = nullptr};
    const std::int64_t groups = weights.out_features * weights.groups;
    plan->scales_offset = sdk::round_up(weights.out_features * weights.row_bytes, 256);
    plan->zeros_offset = plan->scales_offset + sdk::round_up(groups * 4, 256);
    plan->packed_bytes = plan->zeros_offset + (problem.symmetric == 0 ? groups : 0);
    plan->stride = sdk::round_up(problem.in_features, 8);
    plan->workspace_bytes =
        kCublasWorkspace + static_cast<std::uint64_t>(sdk::round_up(problem.out_features * plan->stride * 2, 64));
    sizes.workspace_bytes = plan->workspace_bytes;
    sizes.packed_bytes = static_cast<std::uint64_t>(plan->packed_bytes);
    sizes.packed_alignment = 256;
    // Groups of another size with as many bytes must not pass for these.
    set_layout(sizes, sdk::concat("facet.w", weights.bits, ".canonical.g", weights.group_size,
                                  problem.symmetric != 0 ? ".sym" : ".asym"));
    return plan;
  }

  void pack_weights(const ReferencePlan& plan, std::span<const abi::WeightView> parts, abi::Memory packed) override {
    check_parts(plan.problem, parts);
    if (packed.bytes < static_cast<std::uint64_t>(plan.packed_bytes))
      sdk::fail(abi::Status::invalid_argument, "packed memory of ", packed.bytes, " bytes, the plan needs ",
                plan.packed_bytes);
    auto* target = static_cast<std::uint8_t*>(packed.data);
    const PlainWeights& weights = plan.weights;
    std::int64_t row = 0;
    for (const abi::WeightView& part : parts) {
      const auto rows = static_cast<std::size_t>(part.out_features);
      const auto row_bytes = static_cast<std::size_t>(weights.row_bytes);
      check_cuda(cudaMemcpy2D(target + row * weights.row_bytes, row_bytes, part.values,
                              static_cast<std::size_t>(part.row_bytes), row_bytes, rows, cudaMemcpyHostToDevice),
                 "copy of codes");
      const std::int64_t first = row * weights.groups;
      const auto groups = rows * static_cast<std::size_t>(weights.groups);
      check_cuda(cudaMemcpy(target + plan.scales_offset + first * 4, part.scales, groups * 4, cudaMemcpyHostToDevice),
                 "copy of scales");
      if (plan.problem.symmetric == 0) {
        std::uint8_t* zeros = target + plan.zeros_offset + first;
        check_cuda(part.zeros != nullptr ? cudaMemcpy(zeros, part.zeros, groups, cudaMemcpyHostToDevice)
                                         : cudaMemset(zeros, weights.mean, groups),
                   "copy of zero points");
      }
      row += part.out_features;
    }
    // A memset may return before it is done, and pack() is complete when it returns.
    check_cuda(cudaDeviceSynchronize(), "copy of weights");
  }

  void launch(const ReferencePlan& plan, const abi::LinearArgs& args) override {
    check_cuda_run(plan.problem, args, plan.workspace_bytes);
    const auto* packed = static_cast<const std::uint8_t*>(args.packed);
    PlainWeights weights = plan.weights;
    weights.codes = packed;
    weights.scales = reinterpret_cast<const float*>(packed + plan.scales_offset);
    weights.zeros = plan.problem.symmetric == 0 ? packed + plan.zeros_offset : nullptr;
    auto* matrix = static_cast<std::uint8_t*>(args.workspace.data) + kCublasWorkspace;
    check_cuda(dequantize_rows(weights, matrix, plan.stride, stream_of(args)), "launch of reference_cuda");
    cublas_.multiply({.rows = args.rows,
                      .out_features = plan.problem.out_features,
                      .in_features = plan.problem.in_features,
                      .x = args.input,
                      .x_stride = args.input_stride,
                      .w = matrix,
                      .w_stride = plan.stride,
                      .y = args.output,
                      .y_stride = args.output_stride,
                      .output = plan.problem.output},
                     args.workspace.data, args.stream.handle);
  }

 private:
  Cublas cublas_;
};

}  // namespace facet::linear

FACET_EXPORT_PLUGIN(facet::linear::ReferenceCuda)
