// linear/dense: bf16 weights read in place from the mapped file.
//
// One row: every weight is read once, so the kernel streams four rows of W side by side and memory decides. Many rows:
// tiles of 4 rows of W by 6 rows of x stay in registers, and panels of 16 rows of W stay in the L2 cache (480 KiB at
// 15360 inputs) while a block of rows of x passes by.
#include <algorithm>

#include "common/checks.h"
#include "common/decode.h"
#include "dense/dense_kernels.h"
#include "facet/sdk/numeric.h"

namespace facet::linear {

namespace {

// Rows of x taken at a time: they come from the last-level cache once a panel. Enough rows that reading a panel from
// memory costs little beside multiplying with it.
constexpr std::int64_t kBlockBytes = 4 << 20;

struct DensePlan {
  abi::LinearProblem problem;
  std::uint64_t workspace_bytes;
  std::int64_t block_rows;  // rows of x taken at a time
};

constexpr const char* kActivations[] = {"fp32", "bf16"};

}  // namespace

class Dense final : public sdk::LinearBase<DensePlan> {
 public:
  static constexpr sdk::PluginInfo kInfo{.name = "dense",
                                         .version = "0.1.0",
                                         .summary = "bf16 weights read in place, fp32 sums",
                                         .flags = abi::kDeterministic | abi::kBatchInvariant | abi::kRunReentrant};
  static constexpr abi::OptionSpec kOptions[] = {
      sdk::choice_option("activations", "fp32", kActivations,
                         "fp32 multiplies exact inputs; bf16 rounds them first and is about twice as fast on many rows "
                         "where the processor has AVX-512 BF16")};

  Dense(sdk::Host host, const sdk::OptionReader& options)
      : host_(host), rounds_(options.text("activations") == "bf16") {
    dot_bf16_ = rounds_ && host.has(abi::kCpuAvx512 | abi::kCpuAvx512Bf16);
    kernel_ = dot_bf16_                   ? dense_avx512_bf16
              : host.has(abi::kCpuAvx512) ? dense_avx512
              : host.has(abi::kCpuAvx2)   ? dense_avx2
                                          : dense_generic;
  }

  void check(const abi::LinearProblem& problem, sdk::Reasons& reasons) const override {
    check_common(problem, {.bf16 = true}, reasons);
  }

  std::unique_ptr<DensePlan> make_plan(const abi::LinearProblem& problem, abi::LinearPlan& sizes) override {
    const std::int64_t row_bytes = problem.in_features * element_bytes();
    // A multiple of the 6 rows of the register tile.
    const std::int64_t fitting = std::max<std::int64_t>(1, kBlockBytes / row_bytes / 6) * 6;
    const std::int64_t block_rows = std::min(fitting, problem.max_rows);
    sizes.workspace_bytes = rounds_ ? static_cast<std::uint64_t>(sdk::round_up(block_rows * row_bytes, 64)) : 0;
    return std::make_unique<DensePlan>(DensePlan{problem, sizes.workspace_bytes, block_rows});
  }

  void pack_weights(const DensePlan&, std::span<const abi::WeightView>, abi::Memory) override {
    sdk::fail(abi::Status::invalid_argument, "dense reads weights in place, there is nothing to pack");
  }

  void launch(const DensePlan& plan, const abi::LinearArgs& args) override {
    check_run(args, plan.problem.max_rows, plan.workspace_bytes);
    check_parts(plan.problem, {args.parts, args.part_count});
    if (!rounds_) {
      multiply(plan, args, args.input, args.input_stride, 0, args.rows);
      return;
    }
    for (std::int64_t begin = 0; begin < args.rows; begin += plan.block_rows) {
      const std::int64_t end = std::min(args.rows, begin + plan.block_rows);
      round_inputs(plan, args, begin, end);
      multiply(plan, args, args.workspace.data, plan.problem.in_features, begin, end);
    }
  }

 private:
  std::int64_t element_bytes() const { return dot_bf16_ ? 2 : 4; }

  // Rows [begin, end) of x to the workspace, as bf16 or as floats that hold bf16 values.
  void round_inputs(const DensePlan& plan, const abi::LinearArgs& args, std::int64_t begin, std::int64_t end) const {
    const std::int64_t inputs = plan.problem.in_features;
    const float* x = static_cast<const float*>(args.input);
    for (std::int64_t row = begin; row < end; ++row) {
      const float* source = x + row * args.input_stride;
      if (dot_bf16_) {
        bf16_avx512(source, inputs, static_cast<std::uint16_t*>(args.workspace.data) + (row - begin) * inputs);
      } else {
        float* target = static_cast<float*>(args.workspace.data) + (row - begin) * inputs;
        for (std::int64_t k = 0; k < inputs; ++k) target[k] = sdk::bf16_to_float(sdk::float_to_bf16(source[k]));
      }
    }
  }

  // Output rows [begin, end); `input` points to the first of them when it is the workspace, else to row 0.
  void multiply(const DensePlan& plan, const abi::LinearArgs& args, const void* input, std::int64_t input_stride,
                std::int64_t begin, std::int64_t end) const {
    const std::span<const abi::WeightView> parts(args.parts, args.part_count);
    const std::int64_t outputs = plan.problem.out_features;
    const std::int64_t panels = sdk::ceil_div(outputs, kDensePanel);
    const std::int64_t grain = loop_grain(kDensePanel * plan.problem.in_features * 2, end - begin);
    host_.parallel_for(panels, grain, [&](std::int64_t panel_begin, std::int64_t panel_end, std::uint32_t) {
      for (std::int64_t row = begin; row < end; row += plan.block_rows) {
        DensePanel panel{};
        panel.in_features = plan.problem.in_features;
        panel.input = static_cast<const std::uint8_t*>(input) + (row - begin) * input_stride * element_bytes();
        panel.input_stride = input_stride;
        panel.rows = std::min(plan.block_rows, end - row);
        panel.output_stride = args.output_stride;
        for (std::int64_t index = panel_begin; index < panel_end; ++index) {
          const std::int64_t column = index * kDensePanel;
          panel.columns = static_cast<int>(std::min<std::int64_t>(kDensePanel, outputs - column));
          for (int i = 0; i < panel.columns; ++i) {
            const PartRow source = find_row(parts, column + i);
            panel.row_bytes = source.part->row_bytes;
            panel.weights[i] = reinterpret_cast<const std::uint16_t*>(
                static_cast<const std::uint8_t*>(source.part->values) + source.row * source.part->row_bytes);
          }
          panel.output = static_cast<float*>(args.output) + row * args.output_stride + column;
          kernel_(panel);
        }
      }
    });
  }

  sdk::Host host_;
  bool rounds_;    // activations = "bf16"
  bool dot_bf16_;  // and the processor multiplies bf16
  DenseKernel kernel_;
};

}  // namespace facet::linear

FACET_EXPORT_PLUGIN(facet::linear::Dense)
