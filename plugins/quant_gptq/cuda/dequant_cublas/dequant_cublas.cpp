// linear/dequant_cublas: for many rows. The packed form that w4a16_stream reads is unpacked to bf16 in the workspace,
// as many rows of W at a time as stay in the L2 cache, and cuBLAS multiplies.
#include "quant_gptq/cuda/dequant_cublas/dequant.h"

#include <algorithm>

#include "common/checks.h"
#include "facet/sdk/numeric.h"
#include "quant_gptq/cuda/device/check.h"
#include "quant_gptq/cuda/device/cublas.h"
#include "quant_gptq/cuda/rows32/pack.h"

namespace facet::linear {

namespace {

struct DequantPlan {
  abi::LinearProblem problem;
  Rows32 shape;
  std::int64_t stride;  // of unpacked rows
  int step_units;       // unpacked at a time
  std::uint64_t matrix_bytes;
  std::uint64_t workspace_bytes;
};

}  // namespace

class DequantCublas final : public sdk::LinearBase<DequantPlan> {
 public:
  static constexpr sdk::PluginInfo kInfo{
      .name = "dequant_cublas",
      .version = "0.1.0",
      .summary = "unpacks int4 and int8 weights to bf16 in cache-sized steps, then multiplies with cuBLAS: many rows",
      .devices = static_cast<std::uint32_t>(abi::Device::cuda),
      .flags = abi::kGraphSafe | abi::kDeterministic | abi::kNeedsPack | abi::kPlansWithoutDevice};
  static constexpr abi::OptionSpec kOptions[] = {
      sdk::integer_option("step_mib", 256, 1, 4096, "MiB", "bf16 weights unpacked before each product")};

  DequantCublas(sdk::Host host, const sdk::OptionReader& options)
      : host_(host), step_bytes_(options.integer("step_mib") << 20) {}

  static void probe(sdk::Host, sdk::Reasons& reasons) {
    probe_device(reasons);
    probe_cublas(reasons);
  }

  void check(const abi::LinearProblem& problem, sdk::Reasons& reasons) const override {
    check_cuda_problem(problem, {.int8 = true, .int4 = true}, reasons);
  }

  std::unique_ptr<DequantPlan> make_plan(const abi::LinearProblem& problem, abi::LinearPlan& sizes) override {
    if (device_here()) cublas_.open();
    auto plan = std::make_unique<DequantPlan>();
    plan->problem = problem;
    plan->shape = rows32_shape(problem);
    set_layout(sizes, rows32_sizes(plan->shape, sizes));
    plan->stride = sdk::round_up(problem.in_features, 8);
    const std::int64_t unit_bytes = kUnitRows * plan->stride * 2;
    plan->step_units = static_cast<int>(
        std::clamp<std::int64_t>(step_bytes_ / unit_bytes, std::int64_t{1}, std::int64_t{plan->shape.units}));
    plan->matrix_bytes = static_cast<std::uint64_t>(sdk::round_up(plan->step_units * unit_bytes, 256));
    plan->workspace_bytes = kCublasWorkspace + plan->matrix_bytes;
    sizes.workspace_bytes = plan->workspace_bytes;
    return plan;
  }

  void pack_weights(const DequantPlan& plan, std::span<const abi::WeightView> parts, abi::Memory packed) override {
    rows32_pack(plan.problem, plan.shape, parts, packed, host_);
  }

  void launch(const DequantPlan& plan, const abi::LinearArgs& args) override {
    check_cuda_run(plan.problem, args, plan.workspace_bytes);
    auto* matrix = static_cast<std::uint8_t*>(args.workspace.data) + kCublasWorkspace;
    const Rows32& shape = plan.shape;
    const std::int64_t half = shape.out_features / 2;
    for (int unit = 0; unit < shape.units; unit += plan.step_units) {
      const int units = std::min(plan.step_units, shape.units - unit);
      check_cuda(dequantize_units(shape, args.packed, unit, units, std::int64_t{16} * units, matrix, plan.stride,
                                  stream_of(args)),
                 "launch of dequant_cublas");
      if (shape.gate != 0) {
        const std::int64_t first = std::int64_t{16} * unit;
        const std::int64_t count = std::min<std::int64_t>(std::int64_t{16} * units, half - first);
        multiply(plan, args, matrix, count, first);
        multiply(plan, args, matrix + std::int64_t{16} * units * plan.stride * 2, count, half + first);
      } else {
        const std::int64_t first = std::int64_t{kUnitRows} * unit;
        multiply(plan, args, matrix,
                 std::min<std::int64_t>(std::int64_t{kUnitRows} * units, shape.out_features - first), first);
      }
    }
  }

 private:
  // Columns [first, first + count) of the output from `count` unpacked rows.
  void multiply(const DequantPlan& plan, const abi::LinearArgs& args, const void* matrix, std::int64_t count,
                std::int64_t first) const {
    const std::int64_t element = plan.problem.output == abi::DType::f32 ? 4 : 2;
    cublas_.multiply({.rows = args.rows,
                      .out_features = count,
                      .in_features = plan.problem.in_features,
                      .x = args.input,
                      .x_stride = args.input_stride,
                      .w = matrix,
                      .w_stride = plan.stride,
                      .y = static_cast<std::uint8_t*>(args.output) + first * element,
                      .y_stride = args.output_stride,
                      .output = plan.problem.output},
                     args.workspace.data, args.stream.handle);
  }

  sdk::Host host_;
  std::int64_t step_bytes_;
  Cublas cublas_;
};

}  // namespace facet::linear

FACET_EXPORT_PLUGIN(facet::linear::DequantCublas)
