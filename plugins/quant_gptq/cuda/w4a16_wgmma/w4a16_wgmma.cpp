// linear/w4a16_wgmma: INT4 and INT8 weights for 5 to some thousand rows. Codes become bf16 in registers, wgmma
// multiplies them with activations that the tensor copy engine brings, scales come onto fp32 sums.
#include "common/checks.h"
#include "facet/sdk/numeric.h"
#include "quant_gptq/cuda/device/check.h"
#include "quant_gptq/cuda/device/product_args.h"
#include "quant_gptq/cuda/device/tensor_map.h"
#include "quant_gptq/cuda/rows32/pack.h"
#include "quant_gptq/cuda/w4a16_wgmma/tile.h"

namespace facet::linear {

namespace {

constexpr std::int64_t kMaxRows = 65536;
constexpr std::int64_t kMaxFeatures = std::int64_t{1} << 30;

struct WgmmaPlan {
  abi::LinearProblem problem;
  Rows32 shape;
  TileDevice device;
};

}  // namespace

class W4A16Wgmma final : public sdk::LinearBase<WgmmaPlan> {
 public:
  static constexpr sdk::PluginInfo kInfo{
      .name = "w4a16_wgmma",
      .version = "0.1.0",
      .summary = "int4 and int8 weights unpacked in registers for warpgroup products, any rows; fuses the GELU gate",
      .devices = static_cast<std::uint32_t>(abi::Device::cuda),
      .flags = abi::kGraphSafe | abi::kDeterministic | abi::kNeedsPack | abi::kRunReentrant | abi::kPlansWithoutDevice};
  static constexpr abi::OptionSpec kOptions[] = {
      sdk::boolean_option("dependent_launch", true,
                          "start each launch before the one before it has ended (programmatic dependent launch)")};

  W4A16Wgmma(sdk::Host host, const sdk::OptionReader& options)
      : host_(host), dependent_(options.boolean("dependent_launch")) {}

  static void probe(sdk::Host, sdk::Reasons& reasons) { probe_device(reasons); }

  std::uint32_t fusions() const override { return abi::kFuseGeluGate; }

  void check(const abi::LinearProblem& problem, sdk::Reasons& reasons) const override {
    check_rows32_problem(problem, reasons);
    reasons.require(problem.max_rows <= kMaxRows, "max_rows is ", problem.max_rows, ", this plugin takes up to ",
                    kMaxRows);
    reasons.require(problem.in_features <= kMaxFeatures && problem.out_features <= kMaxFeatures, "in_features ",
                    problem.in_features, " or out_features ", problem.out_features, " is above ", kMaxFeatures);
  }

  std::unique_ptr<WgmmaPlan> make_plan(const abi::LinearProblem& problem, abi::LinearPlan& sizes) override {
    auto plan = std::make_unique<WgmmaPlan>();
    plan->problem = problem;
    plan->shape = rows32_shape(problem);
    set_layout(sizes, rows32_sizes(plan->shape, sizes));
    if (!device_here()) return plan;
    require_tensor_maps();
    check_cuda(wgmma_prepare(plan->shape), "cudaFuncSetAttribute");
    plan->device = describe_device(plan->shape);
    return plan;
  }

  void pack_weights(const WgmmaPlan& plan, std::span<const abi::WeightView> parts, abi::Memory packed) override {
    rows32_pack(plan.problem, plan.shape, parts, packed, host_);
  }

  void launch(const WgmmaPlan& plan, const abi::LinearArgs& args) override {
    check_cuda_run(plan.problem, args, 0);
    WgmmaArgs made = product_args<WgmmaArgs>(plan.problem, plan.shape, args);
    const TileChoice choice = choose_tile(plan.shape, made.rows, plan.device);
    made.tensor = tensor_map_fits(args.input, args.input_stride) ? 1 : 0;
    made.stages = choice.stages;
    made.stage_chunks = choice.stage_chunks;
    made.splits = choice.splits;
    made.column_tiles = choice.column_tiles;
    made.tiles = choice.tiles;
    CUtensorMap map{};
    if (made.tensor != 0)
      map = make_tensor_map(args.input, args.rows, plan.shape.in_features, args.input_stride, choice.form.columns);
    check_cuda(wgmma_launch(made, choice, map, dependent_, stream_of(args)), "launch of w4a16_wgmma");
  }

 private:
  static TileDevice describe_device(const Rows32& shape) {
    TileDevice made{};
    int device = 0;
    check_cuda(cudaGetDevice(&device), "cudaGetDevice");
    check_cuda(cudaDeviceGetAttribute(&made.multiprocessors, cudaDevAttrMultiProcessorCount, device),
               "cudaDeviceGetAttribute");
    for (int splits = 2; splits <= kMostSplits; ++splits) made.clusters[splits] = wgmma_clusters(shape, splits);
    return made;
  }

  sdk::Host host_;
  bool dependent_;
};

}  // namespace facet::linear

FACET_EXPORT_PLUGIN(facet::linear::W4A16Wgmma)
