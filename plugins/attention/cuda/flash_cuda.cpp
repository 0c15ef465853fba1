// attention/flash_cuda: flash attention on tensor cores of compute capability 9.0. Decode splits the keys of a sequence
// over blocks and combines in the same kernel; prefill walks tiles of packed queries.
//
// Method: Dao et al., "FlashAttention" (2022), with the keys split as in "Flash-Decoding" (2023).
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "attention/cuda/call.h"
#include "attention/cuda/kernel_views.h"
#include "attention/cuda/splits.h"
#include "facet/sdk/attention.h"
#include "facet/sdk/cuda/no_gpu.h"

namespace facet::attention::cuda {

namespace {

using abi::DType;
using abi::KvAddressing;
using abi::Status;

constexpr float kLog2E = 1.44269504088896340736f;
// Clusters that share a sequence fold through the workspace; more of them than this holds are not considered.
constexpr std::int64_t kMaxPartBytes = 16 << 20;
// Numbers of sequences whose steps the kernel prepares itself, bit n - 1 for n. With others, blocks wait longer for
// what they prepare, each anew, than a launch of its own takes.
constexpr std::uint64_t kPreparedCounts = 0b11;
constexpr std::uint64_t kFewPreparedCounts = 0b11110011;
void require_cuda(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  const Status status = error == cudaErrorMemoryAllocation ? Status::out_of_memory : Status::failed;
  sdk::fail(status, what, " failed: ", cudaGetErrorString(error), " (", cudaGetErrorName(error), ")");
}

// Device memory that a plan owns: the arrival counters, zero between launches.
class Counters {
 public:
  explicit Counters(std::int64_t count) {
    if (count == 0) return;
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

// What a choice of splits depends on.
struct SplitKey {
  std::int64_t sequences, tokens, rows;
  bool operator==(const SplitKey&) const = default;
};

struct CudaPlan {
  // here: on a device; else the plan has sizes and nothing else.
  CudaPlan(const abi::AttentionProblem& of, bool here)
      : problem(of),
        group(of.query_heads / of.kv_heads),
        counters(here ? of.max_sequences * of.query_heads * kMaxCluster : 0) {}
  abi::AttentionProblem problem;
  std::int64_t group;
  std::uint64_t workspace_bytes = 0;
  std::int32_t box_rows = 0;  // 0: prefill with mma.sync
  DecodeLimits limits{};
  DecodeLimits few_limits{};
  std::int64_t processors = 0;
  std::int64_t most_parts = 0;  // that the workspace holds
  Counters counters;
  mutable SplitKey split_key{};  // of the last call
  mutable Splits splits{};
};

}  // namespace

class FlashCuda final : public sdk::AttentionBase<CudaPlan> {
 public:
  static constexpr sdk::PluginInfo kInfo{
      .name = "flash_cuda",
      .version = "0.1.0",
      .summary = "flash attention on tensor cores: split keys in decode, tiles of packed queries in prefill",
      .devices = static_cast<std::uint32_t>(abi::Device::cuda),
      .flags = abi::kGraphSafe | abi::kDeterministic | abi::kPlansWithoutDevice,
  };
  static constexpr abi::OptionSpec kOptions[] = {
      sdk::integer_option("split_keys", 32, 16, 65536, "keys", "a split of a sequence's keys is at least this long"),
      sdk::integer_option("cluster_blocks", 16, 1, kMaxCluster, "blocks",
                          "splits that combine through shared memory, a power of two"),
      sdk::boolean_option("fuse_preparation", true,
                          "decode makes queries and KV rows in the same launch, where a group has at most 16 heads"),
      sdk::boolean_option("wgmma", true, "prefill with wgmma where it serves the problem, else with mma.sync"),
  };

  FlashCuda(sdk::Host /*host*/, const sdk::OptionReader& options)
      : split_keys_(options.integer("split_keys")),
        cluster_blocks_(options.integer("cluster_blocks")),
        fuse_preparation_(options.boolean("fuse_preparation")),
        wgmma_(options.boolean("wgmma")) {
    if (!std::has_single_bit(static_cast<std::uint64_t>(cluster_blocks_))) {
      sdk::fail(Status::invalid_argument, "option cluster_blocks is ", cluster_blocks_,
                ", which is not a power of two; use 1, 2, 4, 8 or 16");
    }
  }

  static void probe(sdk::Host /*host*/, sdk::Reasons& reasons) {
    const std::string missing = sdk::why_no_gpu();
    reasons.require(missing.empty(), missing);
    if (!missing.empty()) return;
    int major = 0;
    int minor = 0;
    int device = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
    reasons.require(major == 9 && minor == 0, "device ", device, " has compute capability ", major, ".", minor,
                    ", the kernels are compiled for 9.0");
  }

  std::uint32_t fusions() const override { return fuse_preparation_ ? abi::kFusePreparation : 0u; }
  // Whether probe() finds nothing to note; asked once a process.
  static bool device_here() {
    static const bool here = [] {
      sdk::Reasons reasons({nullptr, [](void*, const char*, std::uint64_t) {}});
      probe(sdk::Host(nullptr), reasons);
      return reasons.ok();
    }();
    return here;
  }

  bool reads_shared_form() const override { return true; }
  void check(const abi::AttentionProblem& problem, sdk::Reasons& reasons) const override {
    check_problem(problem, reasons);
  }
  std::vector<abi::KvLayout> offer(const abi::AttentionProblem&) const override { return readable_layouts(); }

  std::unique_ptr<CudaPlan> make_plan(const abi::AttentionProblem& problem, abi::AttentionPlan& sizes) override {
    const auto head_dim = static_cast<std::int32_t>(problem.head_dim);
    const bool int8 = problem.layout.element == DType::i8;
    const bool shared = problem.key_channels > 0;
    const bool here = device_here();
    auto plan = std::make_unique<CudaPlan>(problem, here);
    const auto part_bytes = static_cast<std::int64_t>(sizeof(float)) * part_floats(problem.head_dim);
    plan->most_parts =
        std::min(kMaxPartBytes / part_bytes, problem.max_sequences * problem.query_heads * std::int64_t{kMaxClusters});
    plan->workspace_bytes = static_cast<std::uint64_t>(plan->most_parts * part_bytes);
    sizes.workspace_bytes = plan->workspace_bytes;
    if ((problem.fusions & abi::kFusePreparation) != 0)
      sizes.prepared_counts = serves_few_rows(*plan) ? kFewPreparedCounts : kPreparedCounts;
    if (!here) return plan;
    require_cuda(shared ? prepare_decode_shared(head_dim, plan->limits)
                        : prepare_decode(head_dim, int8, plan->limits, plan->few_limits),
                 "preparing the decode kernel");
    int device = 0;
    int processors = 0;
    require_cuda(cudaGetDevice(&device), "asking for the device");
    require_cuda(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device), "asking for the device");
    plan->processors = processors;
    require_cuda(prepare_prefill(head_dim, shared, int8), "preparing the prefill kernel");
    if (wgmma_ && serves_prefill_wgmma(head_dim, shared) && !int8 && problem.scale >= 0.0f) {
      plan->box_rows = tensor_box_rows(problem.layout.addressing == KvAddressing::paged, problem.layout.block_rows,
                                       prefill_wgmma_keys(shared));
      require_tensor_maps();
      require_cuda(prepare_prefill_wgmma(head_dim, shared), "preparing the prefill kernel");
    }
    return plan;
  }

  void launch(const CudaPlan& plan, const abi::AttentionArgs& args) override {
    check_call(plan.problem, args, plan.workspace_bytes);
    const abi::AttentionProblem& problem = plan.problem;
    const abi::BatchView& batch = *args.batch;
    if (batch.token_count == 0 || batch.sequence_count == 0) return;
    const LaunchShape shape{static_cast<std::int32_t>(problem.head_dim),  problem.key_channels > 0,
                            static_cast<std::int32_t>(problem.kv_heads),  batch.sequence_count,
                            problem.layout.element == DType::i8,          few_rows(plan, batch),
                            static_cast<cudaStream_t>(args.stream.handle)};
    // One sequence that prefills needs no decode kernel; in a mixture each kernel leaves the other's sequences alone.
    const bool only_decode = batch.max_new_tokens * plan.group <= kDecodeRows;
    FlashParams params = flash_params(plan, args, only_decode);
    if (!only_decode && (batch.sequence_count == 1 || plan.group > kDecodeRows)) params.decode_rows = 0;
    if (params.decode_rows > 0) {
      require_cuda(shape.shared ? launch_decode_shared(params, shape) : launch_decode(params, shape),
                   "launching the decode kernel");
    }
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
  // Whether the kernel for few rows takes the step's decoding.
  static bool few_rows(const CudaPlan& plan, const abi::BatchView& batch) {
    return batch.max_new_tokens * plan.group <= kFewRows && serves_few_rows(plan);
  }
  static bool serves_few_rows(const CudaPlan& plan) {
    const abi::AttentionProblem& problem = plan.problem;
    return plan.group <= kFewRows &&
           cuda::serves_few_rows(problem.head_dim, problem.key_channels, problem.layout.element == DType::i8);
  }
  // Chosen anew when the step's bounds change; rows count in steps, so that a growing sequence asks seldom.
  Splits splits_of(const CudaPlan& plan, const abi::BatchView& batch) const {
    constexpr std::int64_t kRowStep = 128;
    const abi::AttentionProblem& problem = plan.problem;
    const SplitKey key{batch.sequence_count, std::min<std::int64_t>(batch.max_new_tokens, kDecodeRows),
                       sdk::round_up(batch.max_rows, kRowStep)};
    if (key == plan.split_key) return plan.splits;
    SplitRequest request{};
    request.sequences = key.sequences;
    request.kv_heads = problem.kv_heads;
    request.seen = problem.window > 0 ? std::min(key.rows, problem.window + key.tokens - 1) : key.rows;
    request.row_bytes =
        sdk::key_value_width(problem.head_dim, problem.key_channels) * sdk::element_bytes(problem.layout.element);
    request.rows = std::min<std::int64_t>(key.tokens * plan.group, kDecodeRows);
    // Query heads of a KV head that may part: pairs as long as they are even.
    request.group = key.tokens * plan.group <= kDecodeRows ? plan.group : 1;
    request.head_dim = problem.head_dim;
    request.processors = plan.processors;
    request.most_parts = plan.most_parts;
    request.split_keys = split_keys_;
    request.cluster_blocks = cluster_blocks_;
    plan.split_key = key;
    plan.splits = choose_splits(request, few_rows(plan, batch) ? plan.few_limits : plan.limits);
    return plan.splits;
  }

  FlashParams flash_params(const CudaPlan& plan, const abi::AttentionArgs& args, bool only_decode) const {
    const abi::AttentionProblem& problem = plan.problem;
    FlashParams params{};
    params.kv = kv_source(*args.kv);
    params.token_begin = args.batch->token_begin;
    params.first_position = args.batch->first_position;
    params.queries = args.queries;
    params.query_stride = args.query_stride;
    params.output = args.output;
    params.output_stride = args.output_stride;
    params.window = static_cast<std::int32_t>(problem.window);
    // A masked score is -inf, and -inf times a scale of zero would be NaN.
    params.scale = problem.scale == 0.0f ? 1e-30f : problem.scale * kLog2E;
    params.decode_rows = kDecodeRows;
    params.box_rows = plan.box_rows;
    const Splits splits = splits_of(plan, *args.batch);
    params.splits = static_cast<std::int32_t>(splits.count);
    params.cluster = static_cast<std::int32_t>(splits.cluster);
    params.stages = static_cast<std::int32_t>(splits.stages);
    params.head_shift = only_decode ? static_cast<std::int32_t>(splits.head_shift) : 0;
    const std::int64_t group = plan.group >> params.head_shift;
    params.group = static_cast<std::int32_t>(group);
    params.group_inverse = static_cast<std::int32_t>(sdk::ceil_div(65536, group));
    params.inbox_rows =
        static_cast<std::int32_t>(std::min<std::int64_t>(kDecodeRows, args.batch->max_new_tokens * group));
    params.parts = static_cast<float*>(args.workspace.data);
    params.counters = plan.counters.data();
    if (args.preparation != nullptr) params.preparation = preparation_of(*args.preparation);
    return params;
  }

  std::int64_t split_keys_;
  std::int64_t cluster_blocks_;
  bool fuse_preparation_;
  bool wgmma_;
};

}  // namespace facet::attention::cuda

FACET_EXPORT_PLUGIN(facet::attention::cuda::FlashCuda)
