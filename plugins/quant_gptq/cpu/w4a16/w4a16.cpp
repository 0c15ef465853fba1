// linear/w4a16: int4 or int8 weights, unpacked in registers, times fp32 or bf16 activations; fp32 sums.
#include <algorithm>

#include "common/checks.h"
#include "facet/sdk/numeric.h"
#include "rows16/pack.h"
#include "rows16/round_pairs.h"
#include "w4a16/w4a16_kernels.h"

namespace facet::linear {

namespace {

// Activations of the rows that are taken together stay in the L2 cache (1 MiB) while all weights pass by.
constexpr std::int64_t kBlockBytes = 640 << 10;

struct A16Plan {
  abi::LinearProblem problem;
  Rows16 shape;
  bool dot_bf16;  // the kernel multiplies bf16
  bool copies;    // inputs go to the workspace: to be rounded, or to be padded to whole segments
  std::int64_t block_rows;
  std::int64_t sums_at;  // of the workspace: inputs, then their sums
  std::uint64_t workspace_bytes;
};

constexpr const char* kActivations[] = {"fp32", "bf16"};

}  // namespace

class W4A16 final : public sdk::LinearBase<A16Plan> {
 public:
  static constexpr sdk::PluginInfo kInfo{
      .name = "w4a16",
      .version = "0.1.0",
      .summary = "int4 or int8 weights unpacked in registers, fp32 or bf16 activations, fp32 sums",
      .flags = abi::kDeterministic | abi::kBatchInvariant | abi::kNeedsPack | abi::kRunReentrant};
  static constexpr abi::OptionSpec kOptions[] = {
      sdk::choice_option("activations", "fp32", kActivations,
                         "fp32 multiplies exact inputs; bf16 rounds them first and is about twice as fast where the "
                         "processor has AVX-512 BF16")};

  W4A16(sdk::Host host, const sdk::OptionReader& options)
      : host_(host), rounds_(options.text("activations") == "bf16") {}

  void check(const abi::LinearProblem& problem, sdk::Reasons& reasons) const override {
    check_common(problem, {.int8 = true, .int4 = true}, reasons);
    check_group(problem, reasons);
  }

  std::unique_ptr<A16Plan> make_plan(const abi::LinearProblem& problem, abi::LinearPlan& sizes) override {
    A16Plan plan{};
    plan.problem = problem;
    plan.shape = rows16_shape(problem);
    plan.dot_bf16 = rounds_ && plan.shape.bits == 4 && host_.has(abi::kCpuAvx512 | abi::kCpuAvx512Bf16);
    const std::int64_t inputs = rows16_padded_inputs(plan.shape);
    plan.copies = rounds_ || inputs != problem.in_features;
    const std::int64_t row_bytes = inputs * (plan.dot_bf16 ? 2 : 4);
    plan.block_rows = std::min(problem.max_rows, std::max<std::int64_t>(1, kBlockBytes / row_bytes / 6) * 6);
    plan.sums_at = plan.copies ? sdk::round_up(plan.block_rows * row_bytes, 64) : 0;
    const std::int64_t sums = problem.symmetric != 0 ? 0 : plan.block_rows * plan.shape.segments * 4;
    plan.workspace_bytes = static_cast<std::uint64_t>(plan.sums_at + sdk::round_up(sums, 64));
    sizes.workspace_bytes = plan.workspace_bytes;
    set_layout(sizes, rows16_sizes(plan.shape, sizes));
    return std::make_unique<A16Plan>(plan);
  }

  void pack_weights(const A16Plan& plan, std::span<const abi::WeightView> parts, abi::Memory packed) override {
    rows16_pack(plan.problem, plan.shape, parts, packed, host_);
  }

  void launch(const A16Plan& plan, const abi::LinearArgs& args) override {
    check_run(args, plan.problem.max_rows, plan.workspace_bytes);
    A16Task task{};
    task.weights = plan.shape;
    task.weights.data = static_cast<const std::uint8_t*>(args.packed);
    task.output_stride = args.output_stride;
    auto* workspace = static_cast<std::uint8_t*>(args.workspace.data);
    float* sums = plan.problem.symmetric != 0 ? nullptr : reinterpret_cast<float*>(workspace + plan.sums_at);
    task.sums = sums;
    const A16Kernel kernel = plan.dot_bf16                ? a16_avx512_bf16
                             : host_.has(abi::kCpuAvx512) ? a16_avx512
                             : host_.has(abi::kCpuAvx2)   ? a16_avx2
                                                          : a16_generic;
    for (std::int64_t row = 0; row < args.rows; row += plan.block_rows) {
      const float* input = static_cast<const float*>(args.input) + row * args.input_stride;
      task.rows = std::min(plan.block_rows, args.rows - row);
      task.input = plan.copies ? static_cast<const void*>(workspace) : input;
      task.input_stride = plan.copies ? rows16_padded_inputs(plan.shape) : args.input_stride;
      task.output = static_cast<float*>(args.output) + row * args.output_stride;
      if (plan.copies || sums != nullptr) {
        const auto body = [&](std::int64_t begin, std::int64_t end, std::uint32_t) {
          for (std::int64_t i = begin; i < end; ++i)
            prepare_row(plan, input + i * args.input_stride, i, workspace,
                        sums != nullptr ? sums + i * plan.shape.segments : nullptr);
        };
        // A row takes about a microsecond, as waking a thread does.
        task.rows < 4 ? body(0, task.rows, 0) : host_.parallel_for(task.rows, 1, body);
      }
      host_.parallel_for(rows16_blocks(plan.shape), rows16_grain(plan.shape, task.rows),
                         [&](std::int64_t begin, std::int64_t end, std::uint32_t) {
                           A16Task piece = task;
                           piece.block_begin = begin;
                           piece.block_end = end;
                           kernel(piece);
                         });
    }
  }

 private:
  // Copies row `index` of the block to the workspace as the kernel wants it, and sums its segments.
  void prepare_row(const A16Plan& plan, const float* input, std::int64_t index, std::uint8_t* workspace,
                   float* sums) const {
    const std::int64_t count = plan.shape.in_features;
    const std::int64_t padded = rows16_padded_inputs(plan.shape);
    if (plan.copies) {
      if (plan.dot_bf16) {
        round_pairs_avx512_bf16(input, count, padded, reinterpret_cast<std::uint16_t*>(workspace) + index * padded);
      } else {
        float* target = reinterpret_cast<float*>(workspace) + index * padded;
        for (std::int64_t k = 0; k < count; ++k) target[k] = value(input[k]);
        std::fill(target + count, target + padded, 0.0f);
      }
    }
    if (sums == nullptr) return;
    for (std::int64_t s = 0; s < plan.shape.segments; ++s) {
      const std::int64_t begin = s * plan.shape.segment;
      const std::int64_t end = std::min(count, begin + plan.shape.segment);
      float sum = 0.0f;
      for (std::int64_t k = begin; k < end; ++k) sum += value(input[k]);
      sums[s] = sum;
    }
  }
  float value(float input) const { return rounds_ ? sdk::bf16_to_float(sdk::float_to_bf16(input)) : input; }

  sdk::Host host_;
  bool rounds_;  // activations = "bf16"
};

}  // namespace facet::linear

FACET_EXPORT_PLUGIN(facet::linear::W4A16)
