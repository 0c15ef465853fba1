// attention/flash_cuda: flash attention on tensor cores of compute capability 9.0. Decode splits the keys of a sequence
// over blocks and combines in the same kernel; prefill walks tiles of packed queries.
//
// Method: Dao et al., "FlashAttention" (2022), with the keys split as in "Flash-Decoding" (2023).
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "attention/cuda/params.h"
#include "attention/cuda/tensor_maps.h"
#include "facet/sdk/attention.h"

namespace facet::attention::cuda {

namespace {

using abi::DType;
using abi::KvAddressing;
using abi::KvOrder;
using abi::KvScales;
using abi::Status;

constexpr std::int64_t kHeadDims[] = {64, 96, 128, 256, 512};
constexpr std::int64_t kMaxPosition = std::numeric_limits<std::int32_t>::max();
constexpr float kLog2E = 1.44269504088896340736f;
// Clusters that share a sequence fold through the workspace; more of them than this holds are not considered.
constexpr std::int64_t kMaxPartBytes = 16 << 20;
// Tiles are copied 16 bytes at a time.
constexpr std::uint32_t kAlignment = 16;

template <typename... Args>
void require(bool holds, const Args&... text) {
  if (!holds) sdk::fail(Status::invalid_argument, text...);
}

void require_cuda(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  const Status status = error == cudaErrorMemoryAllocation ? Status::out_of_memory : Status::failed;
  sdk::fail(status, what, " failed: ", cudaGetErrorString(error), " (", cudaGetErrorName(error), ")");
}

void check_layout(const abi::KvLayout& layout, sdk::Reasons& reasons) {
  const bool addressed = layout.addressing == KvAddressing::contiguous || layout.addressing == KvAddressing::ring ||
                         layout.addressing == KvAddressing::paged;
  reasons.require(addressed, "KV addressing ", static_cast<std::uint32_t>(layout.addressing),
                  " is none of contiguous, ring, paged");
  reasons.require(layout.order == KvOrder::token_major || layout.order == KvOrder::head_major, "KV order ",
                  static_cast<std::uint32_t>(layout.order), " is neither token_major nor head_major");
  reasons.require(layout.element == DType::bf16 || layout.element == DType::i8, "KV element ",
                  sdk::to_string(layout.element), " is neither bf16 nor i8; set the cache's storage to one of them");
  const bool scaled = layout.scales == KvScales::per_row_head;
  reasons.require(scaled == (layout.element == DType::i8), "KV element ", sdk::to_string(layout.element),
                  scaled ? " takes no scales" : " needs a scale a row and head");
  reasons.require(layout.block_rows > 0, "KV block_rows is 0; a problem needs the exact number");
  reasons.require(layout.alignment % kAlignment == 0 && layout.alignment > 0, "KV blocks are aligned to ",
                  layout.alignment, " bytes, not to a multiple of ", kAlignment);
}

void check_problem(const abi::AttentionProblem& problem, sdk::Reasons& reasons) {
  reasons.require(problem.device == abi::Device::cuda, "device ", sdk::to_string(problem.device), " is not cuda");
  reasons.require(problem.input == DType::bf16, "queries are ", sdk::to_string(problem.input), ", not bf16");
  reasons.require(problem.output == DType::bf16, "output is ", sdk::to_string(problem.output), ", not bf16");
  reasons.require(problem.kv_heads > 0 && problem.query_heads > 0, problem.query_heads, " query heads and ",
                  problem.kv_heads, " KV heads: both must be positive");
  reasons.require(problem.kv_heads <= 0 || problem.query_heads % problem.kv_heads == 0, problem.query_heads,
                  " query heads are not divisible by ", problem.kv_heads, " KV heads");
  reasons.require(problem.query_heads <= 65535, problem.query_heads, " query heads are more than 65535");
  const bool known = std::find(std::begin(kHeadDims), std::end(kHeadDims), problem.head_dim) != std::end(kHeadDims);
  reasons.require(known, "head_dim ", problem.head_dim, " is none of 64, 96, 128, 256, 512");
  reasons.require(problem.window >= 0 && problem.window <= kMaxPosition, "window ", problem.window, " is outside 0..",
                  kMaxPosition);
  reasons.require(std::isfinite(problem.scale), "scale ", problem.scale, " is not finite");
  // Packed rows are counted in 32 bits.
  const std::int64_t most_tokens = kMaxPosition / std::max<std::int64_t>(1, problem.query_heads);
  reasons.require(problem.max_step_tokens > 0 && problem.max_step_tokens <= most_tokens, "max_step_tokens ",
                  problem.max_step_tokens, " is outside 1..", most_tokens);
  reasons.require(problem.max_sequences > 0 && problem.max_sequences <= 65535, "max_sequences ", problem.max_sequences,
                  " is outside 1..65535");
  reasons.require(problem.max_context > 0 && problem.max_context <= kMaxPosition - 65536, "max_context ",
                  problem.max_context, " is outside 1..", kMaxPosition - 65536);
  check_layout(problem.layout, reasons);
}

std::vector<abi::KvLayout> readable_layouts() {
  std::vector<abi::KvLayout> layouts;
  for (const DType element : {DType::bf16, DType::i8}) {
    for (const KvAddressing addressing : {KvAddressing::ring, KvAddressing::paged, KvAddressing::contiguous}) {
      for (const KvOrder order : {KvOrder::head_major, KvOrder::token_major}) {
        abi::KvLayout layout{};
        layout.size = sizeof layout;
        layout.addressing = addressing;
        layout.order = order;
        layout.element = element;
        layout.scales = element == DType::i8 ? KvScales::per_row_head : KvScales::none;
        layout.block_rows = 0;
        layout.alignment = 64;
        layouts.push_back(layout);
      }
    }
  }
  return layouts;
}

// Device memory that a plan owns: the arrival counters, zero between launches.
class Counters {
 public:
  explicit Counters(std::int64_t count) {
    const auto bytes = static_cast<std::size_t>(count) * sizeof(std::uint32_t);
    require_cuda(cudaMalloc(reinterpret_cast<void**>(&data_), bytes), "allocating the counters of a plan");
    const cudaError_t error = cudaMemset(data_, 0, bytes);
    if (error != cudaSuccess) cudaFree(data_);
    require_cuda(error, "clearing the counters of a plan");
  }
  ~Counters() { cudaFree(data_); }
  Counters(const Counters&) = delete;
  Counters& operator=(const Counters&) = delete;
  std::uint32_t* data() const { return data_; }

 private:
  std::uint32_t* data_ = nullptr;
};

struct CudaPlan {
  explicit CudaPlan(const abi::AttentionProblem& of)
      : problem(of), group(of.query_heads / of.kv_heads), counters(of.max_sequences * of.kv_heads * kMaxCluster) {}
  abi::AttentionProblem problem;
  std::int64_t group;
  std::uint64_t workspace_bytes = 0;
  std::int32_t box_rows = 0;  // 0: prefill with mma.sync
  DecodeLimits limits{};
  std::int64_t processors = 0;
  std::int64_t most_parts = 0;  // that the workspace holds
  Counters counters;
};

void check_call(const CudaPlan& plan, const abi::AttentionArgs& args) {
  const abi::AttentionProblem& problem = plan.problem;
  require(args.batch != nullptr && args.kv != nullptr, "the call has no batch or no KV view");
  const abi::BatchView& batch = *args.batch;
  const abi::KvView& view = *args.kv;
  require(batch.token_count <= problem.max_step_tokens && batch.sequence_count <= problem.max_sequences, "a step of ",
          batch.token_count, " tokens of ", batch.sequence_count, " sequences exceeds the planned ",
          problem.max_step_tokens, " tokens of ", problem.max_sequences, " sequences");
  require(batch.max_rows <= problem.max_context, "a step of sequences of up to ", batch.max_rows,
          " rows exceeds the planned context of ", problem.max_context);
  const abi::KvLayout& a = view.layout;
  const abi::KvLayout& b = problem.layout;
  require(a.addressing == b.addressing && a.order == b.order && a.element == b.element && a.scales == b.scales &&
              a.block_rows == b.block_rows,
          "the KV view is ", sdk::to_string(a), " and the plan was made for ", sdk::to_string(b));
  require(view.kv_heads == problem.kv_heads && view.head_dim == problem.head_dim, "the KV view has ", view.kv_heads,
          " heads of ", view.head_dim, " and the plan was made for ", problem.kv_heads, " of ", problem.head_dim);
  require((a.addressing == KvAddressing::ring) == (view.ring_rows > 0), "ring_rows is ", view.ring_rows, " for KV ",
          sdk::to_string(a));
  require(args.workspace.bytes >= plan.workspace_bytes, "the workspace has ", args.workspace.bytes,
          " bytes and the plan needs ", plan.workspace_bytes);
  if (batch.token_count == 0) return;
  require(args.queries != nullptr && args.output != nullptr && view.keys != nullptr && view.values != nullptr,
          "queries, output, keys or values are null");
  require(a.scales == KvScales::none || (view.key_scales != nullptr && view.value_scales != nullptr),
          "the KV view has no scales");
  const auto misaligned = [](const void* pointer, std::uintptr_t step) {
    return reinterpret_cast<std::uintptr_t>(pointer) % step != 0;
  };
  require(!misaligned(args.queries, 16) && args.query_stride % 8 == 0,
          "queries must start at a multiple of 16 bytes with a stride of whole 8 elements; the stride is ",
          args.query_stride);
  require(!misaligned(args.output, 4) && args.output_stride % 2 == 0,
          "the output must start at a multiple of 4 bytes with an even stride; the stride is ", args.output_stride);
  require(!misaligned(view.keys, 16) && !misaligned(view.values, 16) && view.row_stride % 8 == 0 &&
              view.block_stride % 8 == 0 && view.head_stride % 8 == 0,
          "keys and values must start at a multiple of 16 bytes with strides of whole 8 elements; they are ",
          view.block_stride, " a block, ", view.row_stride, " a row, ", view.head_stride, " a head");
}

KvSource kv_source(const abi::KvView& view) {
  KvSource kv{};
  kv.keys = view.keys;
  kv.values = view.values;
  kv.key_scales = view.key_scales;
  kv.value_scales = view.value_scales;
  kv.block_stride = view.block_stride;
  kv.row_stride = view.row_stride;
  kv.head_stride = view.head_stride;
  kv.scale_block_stride = view.scale_block_stride;
  kv.scale_row_stride = view.scale_row_stride;
  kv.scale_head_stride = view.scale_head_stride;
  kv.table = view.block_table;
  kv.table_stride = view.table_stride;
  kv.block_rows = view.layout.block_rows;
  kv.ring_rows = static_cast<std::uint32_t>(view.ring_rows);
  kv.single_block = view.layout.addressing == KvAddressing::paged ? 0 : 1;
  return kv;
}

TensorView tensor_view(const abi::KvView& view, std::int32_t box_rows) {
  TensorView tensor{};
  tensor.keys = view.keys;
  tensor.values = view.values;
  tensor.head_dim = view.head_dim;
  tensor.block_rows = view.layout.block_rows;
  tensor.kv_heads = view.kv_heads;
  tensor.block_stride = view.block_stride;
  tensor.row_stride = view.row_stride;
  tensor.head_stride = view.head_stride;
  tensor.box_rows = box_rows;
  return tensor;
}

}  // namespace

class FlashCuda final : public sdk::AttentionBase<CudaPlan> {
 public:
  static constexpr sdk::PluginInfo kInfo{
      .name = "flash_cuda",
      .version = "0.1.0",
      .summary = "flash attention on tensor cores: split keys in decode, tiles of packed queries in prefill",
      .devices = static_cast<std::uint32_t>(abi::Device::cuda),
      .flags = abi::kGraphSafe | abi::kDeterministic,
  };
  static constexpr abi::OptionSpec kOptions[] = {
      sdk::integer_option("split_keys", 32, 16, 65536, "keys", "a split of a sequence's keys is at least this long"),
      sdk::integer_option("cluster_blocks", 16, 1, kMaxCluster, "blocks",
                          "splits that combine through shared memory, a power of two"),
      sdk::boolean_option("wgmma", true, "prefill with wgmma where it serves the problem, else with mma.sync"),
  };

  FlashCuda(sdk::Host /*host*/, const sdk::OptionReader& options)
      : split_keys_(options.integer("split_keys")),
        cluster_blocks_(options.integer("cluster_blocks")),
        wgmma_(options.boolean("wgmma")) {
    require(std::has_single_bit(static_cast<std::uint64_t>(cluster_blocks_)), "option cluster_blocks is ",
            cluster_blocks_, ", which is not a power of two; use 1, 2, 4, 8 or 16");
  }

  static void probe(sdk::Host /*host*/, sdk::Reasons& reasons) {
    int count = 0;
    const cudaError_t error = cudaGetDeviceCount(&count);
    reasons.require(error == cudaSuccess, "no usable CUDA driver: ", cudaGetErrorString(error), " (",
                    cudaGetErrorName(error), ")");
    if (error != cudaSuccess) return;
    int major = 0;
    int minor = 0;
    int device = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
    reasons.require(major == 9 && minor == 0, "device ", device, " has compute capability ", major, ".", minor,
                    ", the kernels are compiled for 9.0");
  }

  void check(const abi::AttentionProblem& problem, sdk::Reasons& reasons) const override {
    check_problem(problem, reasons);
  }
  std::vector<abi::KvLayout> offer(const abi::AttentionProblem&) const override { return readable_layouts(); }

  std::unique_ptr<CudaPlan> make_plan(const abi::AttentionProblem& problem, abi::AttentionPlan& sizes) override {
    const auto head_dim = static_cast<std::int32_t>(problem.head_dim);
    const bool int8 = problem.layout.element == DType::i8;
    auto plan = std::make_unique<CudaPlan>(problem);
    require_cuda(prepare_decode(head_dim, int8, plan->limits), "preparing the decode kernel");
    int device = 0;
    int processors = 0;
    require_cuda(cudaGetDevice(&device), "asking for the device");
    require_cuda(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device), "asking for the device");
    plan->processors = processors;
    require_cuda(prepare_prefill(head_dim, int8), "preparing the prefill kernel");
    if (wgmma_ && serves_prefill_wgmma(head_dim) && !int8 && problem.scale >= 0.0f) {
      plan->box_rows = tensor_box_rows(problem.layout.addressing == KvAddressing::paged, problem.layout.block_rows);
      require_tensor_maps();
      require_cuda(prepare_prefill_wgmma(head_dim), "preparing the prefill kernel");
    }
    const auto part_bytes = static_cast<std::int64_t>(sizeof(float)) * part_floats(problem.head_dim);
    plan->most_parts =
        std::min(kMaxPartBytes / part_bytes, problem.max_sequences * problem.kv_heads * std::int64_t{kMaxClusters});
    plan->workspace_bytes = static_cast<std::uint64_t>(plan->most_parts * part_bytes);
    sizes.workspace_bytes = plan->workspace_bytes;
    return plan;
  }

  void launch(const CudaPlan& plan, const abi::AttentionArgs& args) override {
    check_call(plan, args);
    const abi::AttentionProblem& problem = plan.problem;
    const abi::BatchView& batch = *args.batch;
    if (batch.token_count == 0 || batch.sequence_count == 0) return;
    const LaunchShape shape{static_cast<std::int32_t>(problem.head_dim), static_cast<std::int32_t>(problem.kv_heads),
                            batch.sequence_count, problem.layout.element == DType::i8,
                            static_cast<cudaStream_t>(args.stream.handle)};
    FlashParams params = flash_params(plan, args);
    // One sequence that prefills needs no decode kernel; in a mixture each kernel leaves the other's sequences alone.
    const bool only_decode = batch.max_new_tokens * plan.group <= kDecodeRows;
    if (!only_decode && (batch.sequence_count == 1 || plan.group > kDecodeRows)) params.decode_rows = 0;
    if (params.decode_rows > 0) require_cuda(launch_decode(params, shape), "launching the decode kernel");
    if (!only_decode) {
      const auto most = static_cast<std::int32_t>(batch.max_new_tokens);
      if (plan.box_rows > 0) {
        require_cuda(launch_prefill_wgmma(params, make_tensor_maps(tensor_view(*args.kv, plan.box_rows)), shape, most),
                     "launching the prefill kernel");
      } else {
        require_cuda(launch_prefill(params, shape, most), "launching the prefill kernel");
      }
    }
  }

 private:
  // Blocks that share the keys of one (sequence, KV head), how many of them are a cluster, and the stages of each: no
  // more than it has tiles, so that what is left of the shared memory serves other blocks and the next kernel's first
  // weights.
  struct Splits {
    std::int64_t count, cluster, stages;
  };

  // From host values only, so that a replayed graph agrees. Minimises rounds of blocks times what a processor reads in
  // one, with start and combination counted as bytes that could be read meanwhile.
  Splits choose_splits(const CudaPlan& plan, std::int64_t sequences, std::int64_t tokens, std::int64_t rows) const {
    constexpr std::int64_t kBlockCost = 128 << 10;
    constexpr std::int64_t kSecondFoldCost = 64 << 10;
    const abi::AttentionProblem& problem = plan.problem;
    const std::int64_t newest = std::min<std::int64_t>(tokens, kDecodeRows) - 1;
    const std::int64_t seen =
        std::max<std::int64_t>(1, problem.window > 0 ? std::min(rows, problem.window + newest) : rows);
    const std::int64_t row_bytes = 2 * problem.head_dim * sdk::element_bytes(problem.layout.element);
    Splits best{1, 1, 1};
    std::int64_t best_cost = std::numeric_limits<std::int64_t>::max();
    for (std::int64_t count = 1; count <= 256 && (count == 1 || count * split_keys_ <= seen); count *= 2) {
      const std::int64_t share = sdk::round_up(sdk::ceil_div(seen, count), 16);
      const std::int64_t stages =
          std::min<std::int64_t>(sdk::ceil_div(share, plan.limits.stage_keys), plan.limits.stages);
      const std::int64_t blocks = sequences * problem.kv_heads * count;
      for (int size = kClusterSizes - 1; size >= 0; --size) {
        const std::int64_t cluster = std::int64_t{1} << size;
        const std::int64_t at_once = plan.limits.blocks_at_once[stages - 1][size];
        if (at_once == 0 || cluster > std::min(count, cluster_blocks_) || count > cluster * kMaxClusters) continue;
        if (count > cluster && blocks / cluster > plan.most_parts) continue;
        const std::int64_t neighbours = sdk::ceil_div(std::min(blocks, at_once), plan.processors);
        const std::int64_t cost = sdk::ceil_div(blocks, at_once) * (neighbours * share * row_bytes + kBlockCost) +
                                  (count > cluster ? kSecondFoldCost : 0);
        if (cost >= best_cost) continue;
        best = {count, cluster, stages};
        best_cost = cost;
      }
    }
    return best;
  }

  FlashParams flash_params(const CudaPlan& plan, const abi::AttentionArgs& args) const {
    const abi::AttentionProblem& problem = plan.problem;
    FlashParams params{};
    params.kv = kv_source(*args.kv);
    params.token_begin = args.batch->token_begin;
    params.first_position = args.batch->first_position;
    params.queries = args.queries;
    params.query_stride = args.query_stride;
    params.output = args.output;
    params.output_stride = args.output_stride;
    params.group = static_cast<std::int32_t>(plan.group);
    params.window = static_cast<std::int32_t>(problem.window);
    // A masked score is -inf, and -inf times a scale of zero would be NaN.
    params.scale = problem.scale == 0.0f ? 1e-30f : problem.scale * kLog2E;
    params.decode_rows = kDecodeRows;
    params.box_rows = plan.box_rows;
    const Splits splits =
        choose_splits(plan, args.batch->sequence_count, args.batch->max_new_tokens, args.batch->max_rows);
    params.splits = static_cast<std::int32_t>(splits.count);
    params.cluster = static_cast<std::int32_t>(splits.cluster);
    params.stages = static_cast<std::int32_t>(splits.stages);
    params.parts = static_cast<float*>(args.workspace.data);
    params.counters = plan.counters.data();
    return params;
  }

  std::int64_t split_keys_;
  std::int64_t cluster_blocks_;
  bool wgmma_;
};

}  // namespace facet::attention::cuda

FACET_EXPORT_PLUGIN(facet::attention::cuda::FlashCuda)
