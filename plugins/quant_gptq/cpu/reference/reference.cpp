// linear/reference: dequantize the whole matrix on every call, then multiply. The baseline everybody starts from: it
// takes every weight format and is easy to read; nothing about it is fast.
#include "common/checks.h"
#include "common/decode.h"
#include "facet/sdk/numeric.h"

namespace facet::linear {

namespace {

struct ReferencePlan {
  abi::LinearProblem problem;
  std::uint64_t workspace_bytes;
};

// Eight sums side by side: without them every addition would wait for the one before.
float dot(const float* a, const float* b, std::int64_t count) {
  float sums[8] = {};
  std::int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    for (int lane = 0; lane < 8; ++lane) sums[lane] += a[i + lane] * b[i + lane];
  }
  for (; i < count; ++i) sums[i % 8] += a[i] * b[i];
  return ((sums[0] + sums[4]) + (sums[2] + sums[6])) + ((sums[1] + sums[5]) + (sums[3] + sums[7]));
}

}  // namespace

class Reference final : public sdk::LinearBase<ReferencePlan> {
 public:
  static constexpr sdk::PluginInfo kInfo{
      .name = "reference",
      .version = "0.1.0",
      .summary = "dequantizes the whole matrix to fp32 on every call, then multiplies; bf16, int8 and int4",
      .flags = abi::kDeterministic | abi::kBatchInvariant | abi::kRunReentrant};

  Reference(sdk::Host host, const sdk::OptionReader&) : host_(host) {}

  void check(const abi::LinearProblem& problem, sdk::Reasons& reasons) const override {
    check_common(problem, {.bf16 = true, .int8 = true, .int4 = true}, reasons);
  }

  std::unique_ptr<ReferencePlan> make_plan(const abi::LinearProblem& problem, abi::LinearPlan& sizes) override {
    sizes.workspace_bytes = static_cast<std::uint64_t>(problem.out_features * problem.in_features) * sizeof(float);
    return std::make_unique<ReferencePlan>(ReferencePlan{problem, sizes.workspace_bytes});
  }

  void pack_weights(const ReferencePlan&, std::span<const abi::WeightView>, abi::Memory) override {
    sdk::fail(abi::Status::invalid_argument, "reference reads weights in place, there is nothing to pack");
  }

  void launch(const ReferencePlan& plan, const abi::LinearArgs& args) override {
    const std::span<const abi::WeightView> parts(args.parts, args.part_count);
    check_run(args, plan.problem.max_rows, plan.workspace_bytes);
    check_parts(plan.problem, parts);
    const std::int64_t inputs = plan.problem.in_features;
    float* matrix = static_cast<float*>(args.workspace.data);
    host_.parallel_for(plan.problem.out_features, 1, [&](std::int64_t begin, std::int64_t end, std::uint32_t) {
      for (std::int64_t row = begin; row < end; ++row) {
        const PartRow source = find_row(parts, row);
        decode_row(*source.part, source.row, matrix + row * inputs);
      }
    });
    const float* x = static_cast<const float*>(args.input);
    float* y = static_cast<float*>(args.output);
    host_.parallel_for(plan.problem.out_features, 1, [&](std::int64_t begin, std::int64_t end, std::uint32_t) {
      for (std::int64_t column = begin; column < end; ++column) {
        for (std::int64_t row = 0; row < args.rows; ++row)
          y[row * args.output_stride + column] = dot(x + row * args.input_stride, matrix + column * inputs, inputs);
      }
    });
  }

 private:
  sdk::Host host_;
};

}  // namespace facet::linear

FACET_EXPORT_PLUGIN(facet::linear::Reference)
