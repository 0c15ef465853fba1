// linear/dense_cublas: bf16 weights in device memory, multiplied by cuBLAS with fp32 sums.
#include <algorithm>
#include <cstring>
#include <vector>

#include "common/checks.h"
#include "common/decode.h"
#include "facet/sdk/numeric.h"
#include "quant_gptq/cuda/device/check.h"
#include "quant_gptq/cuda/device/cublas.h"

namespace facet::linear {

namespace {

constexpr std::int64_t kSlabBytes = 64 << 20;  // host memory of one step of packing

struct DensePlan {
  abi::LinearProblem problem;
  std::int64_t stride;  // elements between rows, a multiple of 8
};

}  // namespace

class DenseCublas final : public sdk::LinearBase<DensePlan> {
 public:
  static constexpr sdk::PluginInfo kInfo{
      .name = "dense_cublas",
      .version = "0.1.0",
      .summary = "bf16 weights, multiplied by cuBLAS with fp32 sums",
      .devices = static_cast<std::uint32_t>(abi::Device::cuda),
      .flags = abi::kGraphSafe | abi::kDeterministic | abi::kNeedsPack | abi::kPlansWithoutDevice};

  DenseCublas(sdk::Host host, const sdk::OptionReader&) : host_(host) {}

  static void probe(sdk::Host, sdk::Reasons& reasons) {
    probe_device(reasons);
    probe_cublas(reasons);
  }

  void check(const abi::LinearProblem& problem, sdk::Reasons& reasons) const override {
    check_cuda_problem(problem, {.bf16 = true}, reasons);
  }

  std::unique_ptr<DensePlan> make_plan(const abi::LinearProblem& problem, abi::LinearPlan& sizes) override {
    if (device_here()) cublas_.open();
    const std::int64_t stride = sdk::round_up(problem.in_features, 8);
    sizes.packed_bytes = static_cast<std::uint64_t>(problem.out_features * stride * 2);
    sizes.packed_alignment = 256;
    sizes.workspace_bytes = kCublasWorkspace;
    set_layout(sizes, "facet.bf16.rows");
    return std::make_unique<DensePlan>(DensePlan{problem, stride});
  }

  void pack_weights(const DensePlan& plan, std::span<const abi::WeightView> parts, abi::Memory packed) override {
    check_parts(plan.problem, parts);
    const std::int64_t row_bytes = plan.stride * 2;
    const std::int64_t rows = plan.problem.out_features;
    if (packed.bytes < static_cast<std::uint64_t>(rows * row_bytes))
      sdk::fail(abi::Status::invalid_argument, "packed memory of ", packed.bytes, " bytes, the plan needs ",
                rows * row_bytes);
    const std::int64_t slab = std::min(rows, std::max<std::int64_t>(1, kSlabBytes / row_bytes));
    std::vector<std::uint8_t> staging(static_cast<std::size_t>(slab * row_bytes));
    for (std::int64_t first = 0; first < rows; first += slab) {
      const std::int64_t count = std::min(slab, rows - first);
      host_.parallel_for(count, 16, [&](std::int64_t begin, std::int64_t end, std::uint32_t) {
        for (std::int64_t row = begin; row < end; ++row) {
          const PartRow source = find_row(parts, first + row);
          std::memcpy(staging.data() + row * row_bytes,
                      static_cast<const std::uint8_t*>(source.part->values) + source.row * source.part->row_bytes,
                      static_cast<std::size_t>(plan.problem.in_features * 2));
        }
      });
      check_cuda(cudaMemcpy(static_cast<std::uint8_t*>(packed.data) + first * row_bytes, staging.data(),
                            static_cast<std::size_t>(count * row_bytes), cudaMemcpyHostToDevice),
                 "copy of bf16 weights");
    }
    // A copy from pageable memory returns before its last piece has arrived, and runs are on other streams.
    check_cuda(cudaStreamSynchronize(nullptr), "copy of bf16 weights");
  }

  void launch(const DensePlan& plan, const abi::LinearArgs& args) override {
    check_cuda_run(plan.problem, args, kCublasWorkspace);
    cublas_.multiply({.rows = args.rows,
                      .out_features = plan.problem.out_features,
                      .in_features = plan.problem.in_features,
                      .x = args.input,
                      .x_stride = args.input_stride,
                      .w = args.packed,
                      .w_stride = plan.stride,
                      .y = args.output,
                      .y_stride = args.output_stride,
                      .output = plan.problem.output},
                     args.workspace.data, args.stream.handle);
  }

 private:
  sdk::Host host_;
  Cublas cublas_;
};

}  // namespace facet::linear

FACET_EXPORT_PLUGIN(facet::linear::DenseCublas)
