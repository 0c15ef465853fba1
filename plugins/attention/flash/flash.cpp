// attention/flash: blocks of keys with online softmax; the query heads of a KV head and a chunk of query tokens share
// each block, which is read once. One code path serves decode (one query token) and prefill.
//
// Method: Dao et al., "FlashAttention" (2022), with the keys split as in "Flash-Decoding" (2023).
#include <algorithm>
#include <atomic>
#include <bit>

#include "flash/item.h"

namespace facet::attention {

namespace {

// Split parts never take more workspace than this; beyond it a call runs unsplit, with the same bits.
constexpr std::int64_t kMaxPartFloats = std::int64_t{8} << 20;

const Kernels& choose_kernels(const sdk::Host& host) {
#if defined(FACET_ATTENTION_X86)
  if (host.has(abi::kCpuAvx512)) return avx512_kernels();
  if (host.has(abi::kCpuAvx2)) return avx2_kernels();
#else
  static_cast<void>(host);
#endif
  return generic_kernels();
}

class Flash final : public sdk::AttentionBase<FlashPlan> {
 public:
  static constexpr sdk::PluginInfo kInfo{
      .name = "flash",
      .version = "0.1.0",
      .summary = "blocked attention with online softmax, grouped queries packed, blocks outside the window skipped",
      .flags = abi::kDeterministic | abi::kBatchInvariant | abi::kRunReentrant,
  };
  static constexpr abi::OptionSpec kOptions[] = {
      sdk::integer_option("query_chunk", 64, 1, 4096, "rows",
                          "packed rows (query tokens x heads of a KV head) that share one pass over K and V; no bit of "
                          "the result depends on it"),
      sdk::integer_option("key_block", 64, 16, kMaxKeyBlock, "keys",
                          "keys of a block, a power of two; results differ between values by rounding"),
  };

  Flash(sdk::Host host, const sdk::OptionReader& options)
      : host_(host),
        kernels_(choose_kernels(host)),
        query_chunk_(options.integer("query_chunk")),
        key_block_(options.integer("key_block")) {
    if (!std::has_single_bit(static_cast<std::uint64_t>(key_block_))) {
      sdk::fail(abi::Status::invalid_argument, "option key_block is ", key_block_,
                ", which is not a power of two; use 16, 32, 64, 128 or 256");
    }
  }

  bool reads_shared_form() const override { return true; }
  void check(const abi::AttentionProblem& problem, sdk::Reasons& reasons) const override {
    check_problem(problem, reasons);
  }
  std::vector<abi::KvLayout> offer(const abi::AttentionProblem&) const override { return readable_layouts(); }

  std::unique_ptr<FlashPlan> make_plan(const abi::AttentionProblem& problem, abi::AttentionPlan& sizes) override {
    auto plan = std::make_unique<FlashPlan>();
    plan->problem = problem;
    plan->group = problem.query_heads / problem.kv_heads;
    plan->stride = sdk::round_up(problem.head_dim, 16);
    plan->wide_stride = plan->stride + 16;
    plan->chunk_tokens = std::min(problem.max_step_tokens, std::max<std::int64_t>(1, query_chunk_ / plan->group));
    plan->chunk_rows = plan->chunk_tokens * plan->group;
    plan->key_block = key_block_;
    plan->workers = host_.workers();
    const std::int64_t reach =
        problem.window > 0 ? std::min(problem.max_context, problem.window + plan->chunk_tokens) : problem.max_context;
    const std::int64_t parts = reach / kPartKeys + 2;
    const std::int64_t part_rows = sdk::round_up(plan->chunk_rows * (plan->stride + 2), 16);
    plan->part_floats = plan->workers > 1 ? std::min(2 * plan->workers * parts * part_rows, kMaxPartFloats) : 0;
    Arena count(nullptr);
    take_scratch(count, *plan);
    plan->worker_bytes = count.used();
    Arena whole(nullptr);
    whole.take<std::byte>(plan->worker_bytes * plan->workers);
    take_call_scratch(whole, *plan);
    plan->workspace_bytes = static_cast<std::uint64_t>(whole.used()) + 64;  // the host may align less than we do
    sizes.workspace_bytes = plan->workspace_bytes;
    return plan;
  }

  void launch(const FlashPlan& plan, const abi::AttentionArgs& args) override {
    check_call(plan.problem, args, plan.workspace_bytes);
    zero_padding(plan, args);
    const auto address = reinterpret_cast<std::uintptr_t>(args.workspace.data);
    auto* base = static_cast<std::byte*>(args.workspace.data) + (64 - address % 64) % 64;
    Arena arena(base + plan.worker_bytes * plan.workers);
    const CallScratch call = take_call_scratch(arena, plan);
    const Schedule schedule = make_schedule(plan, *args.batch, call.first_item);
    // Items differ in length, so workers draw them as they go; who computes an item never changes its bits.
    std::atomic<std::int64_t> next{0};
    host_.parallel_for(plan.workers, 1, [&](std::int64_t, std::int64_t, std::uint32_t worker) {
      Arena own(base + plan.worker_bytes * worker);
      ItemRunner runner(plan, kernels_, args, take_scratch(own, plan));
      for (std::int64_t index = next.fetch_add(1); index < schedule.items; index = next.fetch_add(1)) {
        const Item item = find_item(plan, *args.batch, schedule, call.first_item, index);
        if (schedule.split) {
          runner.run_part(item, part_state(plan, schedule, call.parts, item.index));
        } else {
          runner.run_whole(item);
        }
      }
    });
    if (schedule.split) fold_parts(plan, args, schedule, call, base);
  }

 private:
  static SoftmaxState part_state(const FlashPlan& plan, const Schedule& schedule, float* parts, std::int64_t index) {
    float* rows = parts + index * schedule.part_stride;
    const std::int64_t row_count = schedule.part_stride / (plan.stride + 2);
    return {rows + row_count * plan.stride, rows + row_count * (plan.stride + 1), rows};
  }

  // Rows of the step that no sequence owns see no key.
  static void zero_padding(const FlashPlan& plan, const abi::AttentionArgs& args) {
    const abi::BatchView& batch = *args.batch;
    const std::int64_t owned_begin = batch.sequence_count > 0 ? batch.token_begin[0] : 0;
    const std::int64_t owned_end = batch.sequence_count > 0 ? batch.token_begin[batch.sequence_count] : 0;
    for (std::int64_t token = 0; token < batch.token_count; ++token) {
      if (token >= owned_begin && token < owned_end) continue;
      float* row = static_cast<float*>(args.output) + token * args.output_stride;
      std::fill(row, row + plan.problem.query_heads * plan.problem.head_dim, 0.0f);
    }
  }

  // Folds the parts of every (sequence, KV head) in ascending order and writes the rows.
  void fold_parts(const FlashPlan& plan, const abi::AttentionArgs& args, const Schedule& schedule,
                  const CallScratch& call, std::byte* base) const {
    const std::int64_t heads = plan.problem.kv_heads;
    host_.parallel_for(args.batch->sequence_count * heads, 1,
                       [&](std::int64_t first, std::int64_t last, std::uint32_t worker) {
                         Arena own(base + plan.worker_bytes * worker);
                         const WorkerScratch scratch = take_scratch(own, plan);
                         ItemRunner runner(plan, kernels_, args, scratch);
                         for (std::int64_t index = first; index < last; ++index) {
                           fold_head(plan, args, schedule, call, runner, scratch.total, index / heads, index % heads);
                         }
                       });
  }

  void fold_head(const FlashPlan& plan, const abi::AttentionArgs& args, const Schedule& schedule,
                 const CallScratch& call, ItemRunner& runner, SoftmaxState total, std::int64_t sequence,
                 std::int64_t kv_head) const {
    const std::int64_t items = call.first_item[sequence + 1] - call.first_item[sequence];
    if (items == 0) return;
    const std::int64_t parts = items / plan.problem.kv_heads;
    const std::int64_t first = call.first_item[sequence] + kv_head * parts;
    const Item item = find_item(plan, *args.batch, schedule, call.first_item, first);
    const std::int64_t rows = item.token_end * plan.group;
    clear_state(total, rows, plan.stride);
    for (std::int64_t part = 0; part < parts; ++part) {
      kernels_.fold(total, part_state(plan, schedule, call.parts, first + part), rows, plan.stride);
    }
    for (std::int64_t row = 0; row < rows; ++row) {
      runner.write_row(item, row, total.rows + row * plan.stride, total.sum[row]);
    }
  }

  sdk::Host host_;
  const Kernels& kernels_;
  std::int64_t query_chunk_;
  std::int64_t key_block_;
};

}  // namespace

}  // namespace facet::attention

FACET_EXPORT_PLUGIN(facet::attention::Flash)
