// linear/w4a8: int4 or int8 weights times int8 activations.
//
// Activations are rounded once a call, in parallel, to int8 with one scale a row and 128 inputs; products and sums
// inside a segment are exact integers. One row runs at the speed of memory, many rows at the rate of VNNI.
#include <algorithm>

#include "common/checks.h"
#include "facet/sdk/numeric.h"
#include "rows16/pack.h"
#include "w4a8/w4a8_kernels.h"

namespace facet::linear {

namespace {

// Codes of the rows that are taken together: they stay in the L2 cache (1 MiB) while all weights pass by.
constexpr std::int64_t kBlockBytes = 640 << 10;

struct A8Plan {
  abi::LinearProblem problem;
  Rows16 shape;
  std::int64_t block_rows;
  // Of the workspace: codes, then scales, then offsets.
  std::int64_t scales_at;
  std::int64_t offsets_at;
  std::uint64_t workspace_bytes;
};

}  // namespace

class W4A8 final : public sdk::LinearBase<A8Plan> {
 public:
  static constexpr sdk::PluginInfo kInfo{
      .name = "w4a8",
      .version = "0.1.0",
      .summary =
          "int4 or int8 weights, activations rounded to int8 with a scale a row and 128 inputs, exact integer dots",
      .flags = abi::kDeterministic | abi::kBatchInvariant | abi::kNeedsPack | abi::kRunReentrant};

  W4A8(sdk::Host host, const sdk::OptionReader&) : host_(host) {
    kernel_ = host.has(abi::kCpuAvx512 | abi::kCpuAvx512Vnni) ? a8_avx512_vnni
              : host.has(abi::kCpuAvx2)                       ? a8_avx2
                                                              : a8_generic;
    quantize_ = host.has(abi::kCpuAvx512) ? quantize_avx512 : quantize_generic;
  }

  void check(const abi::LinearProblem& problem, sdk::Reasons& reasons) const override {
    check_common(problem, {.int8 = true, .int4 = true}, reasons);
    check_group(problem, reasons);
  }

  std::unique_ptr<A8Plan> make_plan(const abi::LinearProblem& problem, abi::LinearPlan& sizes) override {
    A8Plan plan{};
    plan.problem = problem;
    plan.shape = rows16_shape(problem);
    const std::int64_t inputs = rows16_padded_inputs(plan.shape);
    plan.block_rows = std::min(problem.max_rows, std::max<std::int64_t>(1, kBlockBytes / inputs / 6) * 6);
    plan.scales_at = sdk::round_up(plan.block_rows * inputs, 64);
    plan.offsets_at = plan.scales_at + sdk::round_up(plan.block_rows * plan.shape.segments * 4, 64);
    plan.workspace_bytes =
        static_cast<std::uint64_t>(plan.offsets_at + sdk::round_up(plan.block_rows * plan.shape.segments * 4, 64));
    sizes.workspace_bytes = plan.workspace_bytes;
    set_layout(sizes, rows16_sizes(plan.shape, sizes));
    return std::make_unique<A8Plan>(plan);
  }

  void pack_weights(const A8Plan& plan, std::span<const abi::WeightView> parts, abi::Memory packed) override {
    rows16_pack(plan.problem, plan.shape, parts, packed, host_);
  }

  void launch(const A8Plan& plan, const abi::LinearArgs& args) override {
    check_run(args, plan.problem.max_rows, plan.workspace_bytes);
    auto* workspace = static_cast<std::uint8_t*>(args.workspace.data);
    auto* codes = reinterpret_cast<std::int8_t*>(workspace);
    auto* scales = reinterpret_cast<float*>(workspace + plan.scales_at);
    auto* offsets = reinterpret_cast<std::int32_t*>(workspace + plan.offsets_at);
    for (std::int64_t row = 0; row < args.rows; row += plan.block_rows) {
      const std::int64_t rows = std::min(plan.block_rows, args.rows - row);
      const float* input = static_cast<const float*>(args.input) + row * args.input_stride;
      quantize(plan, input, args.input_stride, rows, codes, scales, offsets);
      A8Task task{};
      task.weights = plan.shape;
      task.weights.data = static_cast<const std::uint8_t*>(args.packed);
      task.rows = rows;
      task.codes = codes;
      task.scales = scales;
      task.offsets = offsets;
      task.output = static_cast<float*>(args.output) + row * args.output_stride;
      task.output_stride = args.output_stride;
      host_.parallel_for(rows16_blocks(plan.shape), rows16_grain(plan.shape, task.rows),
                         [&](std::int64_t begin, std::int64_t end, std::uint32_t) {
                           A8Task piece = task;
                           piece.block_begin = begin;
                           piece.block_end = end;
                           kernel_(piece);
                         });
    }
  }

 private:
  void quantize(const A8Plan& plan, const float* input, std::int64_t stride, std::int64_t rows, std::int8_t* codes,
                float* scales, std::int32_t* offsets) const {
    const std::int64_t inputs = rows16_padded_inputs(plan.shape);
    const std::int64_t groups = sdk::ceil_div(inputs, kActivationGroup);
    const auto body = [&](std::int64_t begin, std::int64_t end, std::uint32_t) {
      for (std::int64_t index = begin; index < end; ++index)
        quantize_group(plan.shape, input + index / groups * stride, index % groups, codes + index / groups * inputs,
                       scales + index / groups * plan.shape.segments, offsets + index / groups * plan.shape.segments);
    };
    // A group takes some 30 ns; below a few hundred of them waking a thread costs more than it saves.
    if (rows * groups <= 256) return body(0, rows * groups, 0);
    host_.parallel_for(rows * groups, 128, body);
  }

  // Group `group` of one row, whose pointers are those of its first group.
  void quantize_group(const Rows16& shape, const float* input, std::int64_t group, std::int8_t* codes, float* scales,
                      std::int32_t* offsets) const {
    const std::int64_t begin = group * kActivationGroup;
    const std::int64_t padded = std::min(kActivationGroup, rows16_padded_inputs(shape) - begin);
    const std::int64_t count = std::min(padded, shape.in_features - begin);
    const float scale = quantize_(input + begin, count, padded, codes + begin);
    for (std::int64_t k = begin; k < begin + padded; k += shape.segment) {
      std::int32_t sum = 0;
      for (std::int64_t i = 0; i < shape.segment; ++i) sum += codes[k + i];
      scales[k / shape.segment] = scale;
      offsets[k / shape.segment] = shape.zeros_offset != 0 ? -sum : -sum * shape.mean;
    }
  }

  sdk::Host host_;
  A8Kernel kernel_;
  QuantizeKernel quantize_;
};

}  // namespace facet::linear

FACET_EXPORT_PLUGIN(facet::linear::W4A8)
