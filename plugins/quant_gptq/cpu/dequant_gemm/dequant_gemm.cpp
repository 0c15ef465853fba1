// linear/dequant_gemm: unpacks a tile of int4 or int8 weights once for many rows of x, then multiplies.
#include <algorithm>

#include "common/checks.h"
#include "dequant_gemm/gemm_kernels.h"
#include "facet/sdk/numeric.h"
#include "rows16/pack.h"
#include "rows16/round_pairs.h"

namespace facet::linear {

namespace {

// Activations of the rows that are taken together: enough rows that unpacking a tile costs little beside multiplying
// with it, few enough bytes for the last-level cache.
constexpr std::int64_t kBlockBytes = 2 << 20;

struct GemmPlan {
  abi::LinearProblem problem;
  Rows16 shape;
  bool copies;  // inputs go to the workspace: to be rounded, or to be padded to whole segments
  std::int64_t block_rows;
  std::int64_t tiles_at;  // of the workspace: inputs, then a tile a worker
  std::uint64_t workspace_bytes;
};

constexpr const char* kTiles[] = {"bf16", "fp32"};

}  // namespace

class DequantGemm final : public sdk::LinearBase<GemmPlan> {
 public:
  static constexpr sdk::PluginInfo kInfo{
      .name = "dequant_gemm",
      .version = "0.1.0",
      .summary = "int4 or int8 weights unpacked a tile at a time for many rows, fp32 sums",
      .flags = abi::kDeterministic | abi::kBatchInvariant | abi::kNeedsPack | abi::kRunReentrant};
  static constexpr abi::OptionSpec kOptions[] = {
      sdk::choice_option("tile", "bf16", kTiles,
                         "type of unpacked weights and of activations; bf16 rounds activations and is about twice as "
                         "fast where the processor has AVX-512 BF16")};

  DequantGemm(sdk::Host host, const sdk::OptionReader& options) : host_(host), rounds_(options.text("tile") == "bf16") {
    dot_bf16_ = rounds_ && host.has(abi::kCpuAvx512 | abi::kCpuAvx512Bf16);
    kernel_ = dot_bf16_                   ? gemm_avx512_bf16
              : host.has(abi::kCpuAvx512) ? gemm_avx512
              : host.has(abi::kCpuAvx2)   ? gemm_avx2
                                          : gemm_generic;
  }

  void check(const abi::LinearProblem& problem, sdk::Reasons& reasons) const override {
    check_common(problem, {.int8 = true, .int4 = true}, reasons);
    check_group(problem, reasons);
  }

  std::unique_ptr<GemmPlan> make_plan(const abi::LinearProblem& problem, abi::LinearPlan& sizes) override {
    GemmPlan plan{};
    plan.problem = problem;
    plan.shape = rows16_shape(problem);
    const std::int64_t inputs = rows16_padded_inputs(plan.shape);
    plan.copies = rounds_ || inputs != problem.in_features;
    const std::int64_t row_bytes = inputs * (dot_bf16_ ? 2 : 4);
    plan.block_rows = std::min(problem.max_rows, std::max<std::int64_t>(1, kBlockBytes / row_bytes / 6) * 6);
    plan.tiles_at = plan.copies ? sdk::round_up(plan.block_rows * row_bytes, 64) : 0;
    plan.workspace_bytes = static_cast<std::uint64_t>(plan.tiles_at + host_.workers() * kTileBytes);
    sizes.workspace_bytes = plan.workspace_bytes;
    set_layout(sizes, rows16_sizes(plan.shape, sizes));
    return std::make_unique<GemmPlan>(plan);
  }

  void pack_weights(const GemmPlan& plan, std::span<const abi::WeightView> parts, abi::Memory packed) override {
    rows16_pack(plan.problem, plan.shape, parts, packed, host_);
  }

  void launch(const GemmPlan& plan, const abi::LinearArgs& args) override {
    check_run(args, plan.problem.max_rows, plan.workspace_bytes);
    auto* workspace = static_cast<std::uint8_t*>(args.workspace.data);
    GemmTask task{};
    task.weights = plan.shape;
    task.weights.data = static_cast<const std::uint8_t*>(args.packed);
    task.output_stride = args.output_stride;
    for (std::int64_t row = 0; row < args.rows; row += plan.block_rows) {
      const float* input = static_cast<const float*>(args.input) + row * args.input_stride;
      task.rows = std::min(plan.block_rows, args.rows - row);
      task.input = plan.copies ? static_cast<const void*>(workspace) : input;
      task.input_stride = plan.copies ? rows16_padded_inputs(plan.shape) : args.input_stride;
      task.output = static_cast<float*>(args.output) + row * args.output_stride;
      if (plan.copies) {
        host_.parallel_for(task.rows, 4, [&](std::int64_t begin, std::int64_t end, std::uint32_t) {
          for (std::int64_t i = begin; i < end; ++i) prepare_row(plan, input + i * args.input_stride, i, workspace);
        });
      }
      host_.parallel_for(rows16_blocks(plan.shape), rows16_grain(plan.shape, task.rows),
                         [&](std::int64_t begin, std::int64_t end, std::uint32_t worker) {
                           GemmTask piece = task;
                           piece.block_begin = begin;
                           piece.block_end = end;
                           piece.tile = workspace + plan.tiles_at + worker * kTileBytes;
                           kernel_(piece);
                         });
    }
  }

 private:
  // Copies row `index` of the block to the workspace as the kernel wants it.
  void prepare_row(const GemmPlan& plan, const float* input, std::int64_t index, std::uint8_t* workspace) const {
    const std::int64_t count = plan.shape.in_features;
    const std::int64_t padded = rows16_padded_inputs(plan.shape);
    if (dot_bf16_) {
      round_pairs_avx512_bf16(input, count, padded, reinterpret_cast<std::uint16_t*>(workspace) + index * padded);
      return;
    }
    float* target = reinterpret_cast<float*>(workspace) + index * padded;
    for (std::int64_t k = 0; k < count; ++k)
      target[k] = rounds_ ? sdk::bf16_to_float(sdk::float_to_bf16(input[k])) : input[k];
    std::fill(target + count, target + padded, 0.0f);
  }

  sdk::Host host_;
  bool rounds_;    // tile = "bf16"
  bool dot_bf16_;  // and the processor multiplies bf16
  GemmKernel kernel_;
};

}  // namespace facet::linear

FACET_EXPORT_PLUGIN(facet::linear::DequantGemm)
