#include "call.h"

#include <cmath>

#include "view_check.h"

namespace facet::attention {

namespace {

using abi::DType;

// Best first.
constexpr DType kElements[] = {DType::bf16, DType::f32, DType::i8};

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
  check_heads(problem, reasons);
  reasons.require(problem.head_dim > 0 && problem.head_dim <= kMaxHeadDim, "head_dim ", problem.head_dim,
                  " is outside 1..", kMaxHeadDim);
  reasons.require(problem.head_dim % kHeadDimStep == 0, "head_dim ", problem.head_dim, " is not a multiple of ",
                  kHeadDimStep);
  // Both halves of keys and values come in whole steps.
  constexpr std::int64_t kBothHalves = 2 * kHeadDimStep;
  reasons.require(
      problem.key_channels == 0 || (problem.key_channels > 0 && problem.key_channels < problem.head_dim &&
                                    problem.key_channels % kBothHalves == 0 && problem.head_dim % kBothHalves == 0),
      "key_channels ", problem.key_channels, " of head_dim ", problem.head_dim, ": both must be multiples of ",
      kBothHalves, ", the first one below the second");
  reasons.require(problem.window >= 0, "window ", problem.window, " is negative");
  reasons.require(std::isfinite(problem.scale), "scale ", problem.scale, " is not finite");
  reasons.require(problem.max_step_tokens > 0, "max_step_tokens ", problem.max_step_tokens, " is not positive");
  reasons.require(problem.max_sequences > 0, "max_sequences ", problem.max_sequences, " is not positive");
  reasons.require(problem.max_context > 0, "max_context ", problem.max_context, " is not positive");
  check_layout(problem.layout, kElements, "none of f32, bf16, i8", reasons);
}

std::vector<abi::KvLayout> readable_layouts() {
  return layouts_of(kElements);
}

void check_call(const abi::AttentionProblem& problem, const abi::AttentionArgs& args, std::uint64_t workspace_bytes) {
  check_view(problem, args, workspace_bytes);
  const abi::BatchView& batch = *args.batch;
  if (batch.token_count == 0) return;
  for (std::int64_t sequence = 0; sequence < batch.sequence_count; ++sequence) check_sequence(problem, args, sequence);
}

}  // namespace facet::attention
