#include "call.h"

#include <cmath>

namespace facet::attention {

namespace {

using abi::DType;
using abi::KvAddressing;
using abi::KvOrder;
using abi::KvScales;
using abi::Status;

void check_layout(const abi::KvLayout& layout, sdk::Reasons& reasons) {
  const bool addressed = layout.addressing == KvAddressing::contiguous || layout.addressing == KvAddressing::ring ||
                         layout.addressing == KvAddressing::paged;
  reasons.require(addressed, "KV addressing ", static_cast<std::uint32_t>(layout.addressing),
                  " is none of contiguous, ring, paged");
  reasons.require(layout.order == KvOrder::token_major || layout.order == KvOrder::head_major, "KV order ",
                  static_cast<std::uint32_t>(layout.order), " is neither token_major nor head_major");
  reasons.require(layout.element == DType::f32 || layout.element == DType::bf16 || layout.element == DType::i8,
                  "KV element ", sdk::to_string(layout.element), " is none of f32, bf16, i8");
  const bool scaled = layout.scales == KvScales::per_row_head;
  reasons.require(scaled || layout.scales == KvScales::none, "KV scales ", static_cast<std::uint32_t>(layout.scales),
                  " is neither none nor per_row_head");
  reasons.require(scaled == (layout.element == DType::i8), "KV element ", sdk::to_string(layout.element),
                  scaled ? " takes no scales" : " needs a scale a row and head");
  reasons.require(layout.block_rows > 0, "KV block_rows is 0; a problem needs the exact number");
}

bool same_layout(const abi::KvLayout& a, const abi::KvLayout& b) {
  return a.addressing == b.addressing && a.order == b.order && a.element == b.element && a.scales == b.scales &&
         a.block_rows == b.block_rows;
}

template <typename... Args>
void require(bool holds, const Args&... text) {
  if (!holds) sdk::fail(Status::invalid_argument, text...);
}

// Rows [first, last] of the table of `sequence` that the step reads must be resident.
void check_resident(const abi::KvView& view, std::int64_t sequence, std::int64_t first, std::int64_t last) {
  const std::int64_t rows = view.layout.block_rows;
  if (view.ring_rows > 0) {
    require(first > last - view.ring_rows, "sequence ", sequence, " needs positions ", first, "..", last, ", ",
            last - first + 1, " rows, and its ring has ", view.ring_rows,
            "; use a ring of at least window + chunk - 1 rows or a smaller chunk");
    first = 0;
    last = std::min(last, view.ring_rows - 1);
  }
  require(last / rows < view.table_stride, "sequence ", sequence, " needs block ", last / rows,
          " of its block table, which has ", view.table_stride, " entries");
  for (std::int64_t block = first / rows; block <= last / rows; ++block) {
    const std::int32_t id = view.block_table[sequence * view.table_stride + block];
    require(id >= 0, "sequence ", sequence, " needs block ", block, " of its block table, which is not resident (", id,
            ")");
  }
}

void check_sequence(const abi::AttentionProblem& problem, const abi::AttentionArgs& args, std::int64_t sequence) {
  const abi::BatchView& batch = *args.batch;
  const std::int64_t begin = batch.token_begin[sequence];
  const std::int64_t end = batch.token_begin[sequence + 1];
  require(begin >= 0 && begin <= end && end <= batch.token_count, "sequence ", sequence, " owns rows [", begin, ", ",
          end, ") of a step of ", batch.token_count, " tokens");
  if (begin == end) return;
  const std::int64_t first = batch.first_position[sequence];
  const std::int64_t last = first + (end - begin) - 1;
  require(first >= 0 && last < problem.max_context, "sequence ", sequence, " has new positions ", first, "..", last,
          " and the plan was made for contexts of ", problem.max_context, " rows");
  check_resident(*args.kv, sequence, sdk::window_begin(first, problem.window), last);
}

}  // namespace

void check_problem(const abi::AttentionProblem& problem, sdk::Reasons& reasons) {
  reasons.require(problem.device == abi::Device::cpu, "device ", sdk::to_string(problem.device), " is not cpu");
  reasons.require(problem.input == DType::f32, "queries are ", sdk::to_string(problem.input), ", not f32");
  reasons.require(problem.output == DType::f32, "output is ", sdk::to_string(problem.output), ", not f32");
  reasons.require(problem.kv_heads > 0 && problem.query_heads > 0, problem.query_heads, " query heads and ",
                  problem.kv_heads, " KV heads: both must be positive");
  reasons.require(problem.kv_heads <= 0 || problem.query_heads % problem.kv_heads == 0, problem.query_heads,
                  " query heads are not divisible by ", problem.kv_heads, " KV heads");
  reasons.require(problem.head_dim > 0 && problem.head_dim <= kMaxHeadDim, "head_dim ", problem.head_dim,
                  " is outside 1..", kMaxHeadDim);
  reasons.require(problem.head_dim % kHeadDimStep == 0, "head_dim ", problem.head_dim, " is not a multiple of ",
                  kHeadDimStep);
  reasons.require(problem.window >= 0, "window ", problem.window, " is negative");
  reasons.require(std::isfinite(problem.scale), "scale ", problem.scale, " is not finite");
  reasons.require(problem.max_step_tokens > 0, "max_step_tokens ", problem.max_step_tokens, " is not positive");
  reasons.require(problem.max_sequences > 0, "max_sequences ", problem.max_sequences, " is not positive");
  reasons.require(problem.max_context > 0, "max_context ", problem.max_context, " is not positive");
  check_layout(problem.layout, reasons);
}

std::vector<abi::KvLayout> readable_layouts() {
  std::vector<abi::KvLayout> layouts;
  for (const DType element : {DType::bf16, DType::f32, DType::i8}) {
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

void check_call(const abi::AttentionProblem& problem, const abi::AttentionArgs& args, std::uint64_t workspace_bytes) {
  require(args.batch != nullptr && args.kv != nullptr, "the call has no batch or no KV view");
  const abi::BatchView& batch = *args.batch;
  const abi::KvView& view = *args.kv;
  require(batch.token_count <= problem.max_step_tokens && batch.sequence_count <= problem.max_sequences, "a step of ",
          batch.token_count, " tokens of ", batch.sequence_count, " sequences exceeds the planned ",
          problem.max_step_tokens, " tokens of ", problem.max_sequences, " sequences");
  require(same_layout(view.layout, problem.layout), "the KV view is ", sdk::to_string(view.layout),
          " and the plan was made for ", sdk::to_string(problem.layout));
  require(view.kv_heads == problem.kv_heads && view.head_dim == problem.head_dim, "the KV view has ", view.kv_heads,
          " heads of ", view.head_dim, " and the plan was made for ", problem.kv_heads, " of ", problem.head_dim);
  const bool ring = view.layout.addressing == KvAddressing::ring;
  require(ring == (view.ring_rows > 0), "ring_rows is ", view.ring_rows, " for KV ", sdk::to_string(view.layout));
  require(args.workspace.bytes >= workspace_bytes, "the workspace has ", args.workspace.bytes,
          " bytes and the plan needs ", workspace_bytes);
  if (batch.token_count == 0) return;
  require(args.queries != nullptr && args.output != nullptr && view.keys != nullptr && view.values != nullptr,
          "queries, output, keys or values are null");
  require(view.layout.scales == KvScales::none || (view.key_scales != nullptr && view.value_scales != nullptr),
          "the KV view has no scales");
  for (std::int64_t sequence = 0; sequence < batch.sequence_count; ++sequence) check_sequence(problem, args, sequence);
}

}  // namespace facet::attention
