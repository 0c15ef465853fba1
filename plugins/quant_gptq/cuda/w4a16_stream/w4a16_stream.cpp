// linear/w4a16_stream: INT4 and INT8 weights for decoding, 1 to 8 rows. Weights stream from device memory through a
// ring in shared memory, and the first ring is on its way before the launch before this one has ended.
#include <algorithm>
#include <atomic>

#include "common/checks.h"
#include "quant_gptq/cuda/device/check.h"
#include "quant_gptq/cuda/device/product_args.h"
#include "quant_gptq/cuda/device/tensor_map.h"
#include "quant_gptq/cuda/rows32/pack.h"
#include "quant_gptq/cuda/w4a16_stream/split.h"
#include "quant_gptq/cuda/w4a16_stream/stream.h"
#include "quant_gptq/cuda/w4a16_stream/wide.h"

namespace facet::linear {

namespace {

constexpr int kBlockReserve = 1024;  // shared memory that the system takes of each block
constexpr int kMostInputs = 65536;
constexpr int kSharedPerBlock = 227 << 10;  // compute capability 9.0
// Measured on an H200.
constexpr int kLargerBlock = 122 << 10;  // of a multiprocessor's 228 KiB, the reserve included
constexpr int kBesideAttention = 80 << 10;
constexpr int kFirstCopies = 2;
constexpr int kCopies = 4;

struct StreamPlan {
  abi::LinearProblem problem;
  Rows32 shape;
  std::uint64_t workspace_bytes;
  SplitDevice device;
  WideDevice wide;
};

}  // namespace

class W4A16Stream final : public sdk::LinearBase<StreamPlan> {
 public:
  static constexpr sdk::PluginInfo kInfo{
      .name = "w4a16_stream",
      .version = "0.1.0",
      .summary =
          "int4 and int8 weights streamed through shared memory, 1 to 8 rows; fuses the GELU gate and, for few rows, "
          "the residual norm",
      .devices = static_cast<std::uint32_t>(abi::Device::cuda),
      .flags = abi::kGraphSafe | abi::kDeterministic | abi::kNeedsPack | abi::kRunReentrant | abi::kPlansWithoutDevice};
  static constexpr abi::OptionSpec kOptions[] = {
      sdk::integer_option("blocks_per_sm", 2, 1, 2, "",
                          "blocks that share a multiprocessor: with 2, the next launch "
                          "loads its first weights while this one works"),
      sdk::boolean_option("dependent_launch", true,
                          "start each launch before the one before it has ended (programmatic dependent launch)"),
      sdk::integer_option(
          "fuse_norm_rows", kWideRows, 0, kWideRows, "",
          "most rows whose residual norm is fused: up to 2 each block makes the inputs for itself; with 8, some "
          "blocks of the launch make those of 5 to 8 rows for all. 3 and 4 rows are never fused, and 3 to 7 are as 2")};

  W4A16Stream(sdk::Host host, const sdk::OptionReader& options)
      : host_(host),
        blocks_per_sm_(static_cast<int>(options.integer("blocks_per_sm"))),
        dependent_(options.boolean("dependent_launch")),
        fuse_norm_rows_(options.integer("fuse_norm_rows")) {}

  static void probe(sdk::Host, sdk::Reasons& reasons) { probe_device(reasons); }

  std::uint32_t fusions() const override { return abi::kFuseResidualNorm | abi::kFuseGeluGate; }

  void check(const abi::LinearProblem& problem, sdk::Reasons& reasons) const override {
    check_rows32_problem(problem, reasons);
    reasons.require(problem.max_rows <= kWideRows, "max_rows is ", problem.max_rows, ", this plugin takes up to ",
                    kWideRows);
    if (fuses_norm(problem)) {
      const std::int64_t most =
          fuse_norm_rows_ < kWideRows ? std::min<std::int64_t>(fuse_norm_rows_, kGemvRows) : kWideRows;
      reasons.require(problem.max_rows <= most, "the residual norm is fused for up to ", most,
                      " rows (option fuse_norm_rows), max_rows is ", problem.max_rows);
      reasons.require(problem.in_features <= kGemvMaxNormInputs, "the residual norm is fused for up to ",
                      kGemvMaxNormInputs, " inputs, in_features is ", problem.in_features);
      reasons.require(problem.max_rows <= kGemvRows || problem.min_rows > kSplitRows,
                      "the residual norm is fused for 1 to ", kGemvRows, " rows and for ", kSplitRows + 1, " to ",
                      kWideRows, ", min_rows is ", problem.min_rows, " and max_rows ", problem.max_rows);
      reasons.require(problem.max_rows <= kGemvRows || problem.in_features % 4 == 0, "the residual norm of more than ",
                      kGemvRows, " rows is fused for a multiple of 4 inputs, in_features is ", problem.in_features);
    }
    reasons.require(problem.in_features <= kMostInputs, "in_features is ", problem.in_features,
                    ", this plugin takes up to ", kMostInputs);
    if (problem.in_features < 1 || problem.in_features > kMostInputs || problem.group_size < 1 || problem.max_rows < 1)
      return;
    // The activations of a step stay in shared memory beside the ring.
    const Rows32 shape = rows32_shape(problem);
    const int rows =
        static_cast<int>(std::min<std::int64_t>(fuses_norm(problem) ? kGemvRows : kSplitRows, problem.max_rows));
    const int gemv_rows = fuses_norm(problem) ? rows : 1;
    const int gemv = gemv_fixed_bytes(shape, gemv_rows) + kGemvMinSlots * gemv_page_bytes(shape);
    reasons.require(gemv <= kSharedPerBlock && (rows <= gemv_rows || split_fits(shape, rows, kSharedPerBlock)),
                    "in_features ", problem.in_features, " at ", rows,
                    " rows needs more shared memory than the 227 KiB of a block");
  }

  std::unique_ptr<StreamPlan> make_plan(const abi::LinearProblem& problem, abi::LinearPlan& sizes) override {
    auto plan = std::make_unique<StreamPlan>();
    plan->problem = problem;
    plan->shape = rows32_shape(problem);
    set_layout(sizes, rows32_sizes(plan->shape, sizes));
    if (fuses_norm(problem) && problem.max_rows > kSplitRows)  // the normalised inputs as digits
      plan->workspace_bytes = static_cast<std::uint64_t>(wide_workspace_bytes(plan->shape));
    sizes.workspace_bytes = plan->workspace_bytes;
    if (!device_here()) return plan;
    int device = 0;
    check_cuda(cudaGetDevice(&device), "cudaGetDevice");
    plan->device.multiprocessors = attribute(cudaDevAttrMultiProcessorCount, device);
    plan->device.shared_per_multiprocessor = attribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor, device);
    plan->device.shared_per_block = attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    check_cuda(gemv_prepare(plan->shape, fuses_norm(problem)), "cudaFuncSetAttribute");
    if (problem.max_rows > 1 && !fuses_norm(problem)) {
      check_cuda(split_prepare(plan->shape), "cudaFuncSetAttribute");
      for (int splits = 1; splits <= kMostSplits; ++splits)
        plan->device.clusters[splits] = split_clusters(plan->shape, splits, plan->device.shared_per_block);
    }
    if (problem.max_rows > kSplitRows) {
      require_tensor_maps();
      check_cuda(wide_prepare(plan->shape), "cudaFuncSetAttribute");
      plan->wide.multiprocessors = plan->device.multiprocessors;
      for (int splits = 2; splits <= kWideMostSplits; ++splits)
        plan->wide.clusters[splits] = wide_clusters(plan->shape, splits, plan->device.shared_per_block);
    }
    return plan;
  }

  void pack_weights(const StreamPlan& plan, std::span<const abi::WeightView> parts, abi::Memory packed) override {
    rows32_pack(plan.problem, plan.shape, parts, packed, host_);
  }

  void launch(const StreamPlan& plan, const abi::LinearArgs& args) override {
    check_cuda_run(plan.problem, args, plan.workspace_bytes);
    if (args.rows > kSplitRows) {
      WideArgs wide = arguments<WideArgs>(plan, args);
      if (fuses_norm(plan.problem)) set_norm_blocks(plan, args, wide);
      launch_wide(plan, wide, stream_of(args));
      return;
    }
    StreamArgs stream = arguments<StreamArgs>(plan, args);
    if (args.rows > 1 && !fuses_norm(plan.problem)) {
      launch_split(plan, stream, stream_of(args));
    } else {
      launch_gemv(plan, stream, stream_of(args));
    }
  }

 private:
  static int attribute(cudaDeviceAttr name, int device) {
    int value = 0;
    check_cuda(cudaDeviceGetAttribute(&value, name, device), "cudaDeviceGetAttribute");
    return value;
  }

  static bool fuses_norm(const abi::LinearProblem& problem) { return (problem.fusions & abi::kFuseResidualNorm) != 0; }
  template <typename Args>
  static Args arguments(const StreamPlan& plan, const abi::LinearArgs& args) {
    Args made = product_args<Args>(plan.problem, plan.shape, args);
    if (!fuses_norm(plan.problem)) return made;
    const abi::LinearResidual& residual = *args.residual;
    made.residual = {residual.epsilon,   residual.scale,     residual.hidden,    residual.update,
                     residual.post_norm, residual.next_norm, residual.hidden_out};
    return made;
  }

  static void set_norm_blocks(const StreamPlan& plan, const abi::LinearArgs& args, WideArgs& made) {
    const abi::LinearResidual& residual = *args.residual;
    const void* const arrays[] = {residual.hidden, residual.update, residual.post_norm, residual.next_norm,
                                  residual.hidden_out};
    if (std::any_of(std::begin(arrays), std::end(arrays),
                    [](const void* array) { return reinterpret_cast<std::uintptr_t>(array) % 16 != 0; }))
      sdk::fail(abi::Status::invalid_argument, "an array of the residual does not begin at a multiple of 16 bytes");
    if (args.counters == nullptr) sdk::fail(abi::Status::invalid_argument, "the run has no counters");
    made.norm = {kNormBlocks, static_cast<unsigned*>(args.counters)};
    made.digits = static_cast<unsigned char*>(args.workspace.data);
    made.pairs = made.digits + wide_pairs_offset(plan.shape);
  }

  // Launches alternate between two sizes of shared memory that fit a multiprocessor together, while two blocks of the
  // larger do not. A multiprocessor then holds one block of each of two launches. With equal sizes a launch may find
  // one with two free places; that has two of its blocks from then on in every second launch, and all wait for it.
  // The role decides where it can, so that a step is the same whatever was launched before: o and down have the smaller
  // size. With sizes the other way round a step of the 12B took 2.50 ms instead of 2.46 at 1 row and 4.17 instead of
  // 3.42 at 4. A product that follows itself changes its size.
  // A launch of fewer blocks than multiprocessors leaves free places too, so it has the smaller size.
  struct Size {
    int share;  // of a multiprocessor's shared memory
    int least;  // that a block must take
  };
  static bool prefers_larger(abi::LinearRole role, bool otherwise) {
    switch (role) {
      case abi::LinearRole::qkv:
      case abi::LinearRole::qk:
      case abi::LinearRole::gate_up:
      case abi::LinearRole::head:
        return true;
      case abi::LinearRole::o:
      case abi::LinearRole::down:
        return false;
      default:
        return otherwise;
    }
  }
  Size next_size(const StreamPlan& plan, int grid) {
    const SplitDevice& device = plan.device;
    if (blocks_per_sm_ == 1) return {device.shared_per_multiprocessor, 0};
    const bool repeated = last_.exchange(&plan, std::memory_order_relaxed) == &plan;
    const bool other = !larger_.load(std::memory_order_relaxed);
    const bool larger =
        (repeated ? other : prefers_larger(plan.problem.role, other)) && grid > device.multiprocessors - 2;
    larger_.store(larger, std::memory_order_relaxed);
    if (larger) return {kLargerBlock, device.shared_per_multiprocessor / 2};
    return {device.shared_per_multiprocessor - kLargerBlock, 0};
  }

  void launch_gemv(const StreamPlan& plan, StreamArgs& args, cudaStream_t stream) {
    const int fixed = gemv_fixed_bytes(plan.shape, args.rows);
    const int page = gemv_page_bytes(plan.shape);
    const int most = gemv_max_slots(plan.shape);
    const Size size = next_size(plan, plan.device.multiprocessors);
    args.slots = std::min((size.share - kBlockReserve - fixed) / page, most);
    int shared = std::max(fixed + args.slots * page, size.least);
    if (args.slots < kGemvMinSlots) {  // alone on its multiprocessor
      args.slots = std::min((plan.device.shared_per_block - fixed) / page, most);
      shared = fixed + args.slots * page;
    }
    args.blocks = std::min(plan.shape.units, plan.device.multiprocessors);
    args.first_copies = kFirstCopies;
    args.copies = kCopies;
    check_cuda(gemv_launch(args, plan.device.multiprocessors, shared, dependent_, stream), "launch of w4a16_stream");
  }

  void launch_split(const StreamPlan& plan, StreamArgs& args, cudaStream_t stream) {
    const int grid = split_cut(args, plan.device);
    const Size size = next_size(plan, grid);
    int shared = std::max(split_ring(args, size.share - kBlockReserve), size.least);
    if (args.slots == 0) shared = split_ring(args, plan.device.shared_per_block);
    check_cuda(split_launch(args, grid, shared, dependent_, stream), "launch of w4a16_stream");
  }

  void launch_wide(const StreamPlan& plan, WideArgs& args, cudaStream_t stream) {
    const int grid = wide_cut(args, plan.wide);
    const Size size = next_size(plan, grid);
    int shared = 0;
    // Beside a block of attention of a few sequences (flash_cuda, head size 256) there is room for so much. A block of
    // o then has its place, and most of its weights, before attention ends, and each multiprocessor has one. When they
    // find places only where attention has ended, some have two, and down, three launches later, waits for them: a step
    // of 8 sequences took 3.84 ms instead of 3.72.
    if (plan.problem.role == abi::LinearRole::o && blocks_per_sm_ > 1)
      shared = wide_ring(args, kBesideAttention - kBlockReserve);
    if (shared == 0) shared = wide_ring(args, size.share - kBlockReserve);
    if (shared != 0) shared = std::max(shared, size.least);
    if (shared == 0) shared = wide_ring(args, plan.device.shared_per_block);
    if (args.norm.count > 0) shared = std::max(shared, norm_block_bytes(static_cast<int>(plan.shape.in_features)));
    args.tensor =
        args.norm.count == 0 && tensor_map_fits(args.x, args.x_stride) && plan.shape.in_features % 64 == 0 ? 1 : 0;
    CUtensorMap map{};
    if (args.tensor != 0)
      map = make_block_map(args.x, args.rows, plan.shape.in_features, args.x_stride, kWideRows, 4 << args.k_shift);
    check_cuda(wide_launch(args, map, grid, shared, dependent_, stream), "launch of w4a16_stream");
  }

  sdk::Host host_;
  int blocks_per_sm_;
  bool dependent_;
  std::int64_t fuse_norm_rows_;
  std::atomic<const StreamPlan*> last_{nullptr};
  std::atomic<bool> larger_{false};  // the last launch
};

}  // namespace facet::linear

FACET_EXPORT_PLUGIN(facet::linear::W4A16Stream)
