#include "attention/cuda/call.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "attention/common/view_check.h"
#include "attention/cuda/params.h"

namespace facet::attention::cuda {

namespace {

using abi::DType;

constexpr std::int64_t kHeadDims[] = {64, 96, 128, 256, 512};
constexpr std::int64_t kMaxPosition = std::numeric_limits<std::int32_t>::max();
// Tiles are copied 16 bytes at a time.
constexpr std::uint32_t kAlignment = 16;

// Best first.
constexpr DType kElements[] = {DType::bf16, DType::i8};

bool misaligned(const void* pointer, std::uintptr_t step) {
  return reinterpret_cast<std::uintptr_t>(pointer) % step != 0;
}

void check_preparation(const abi::AttentionProblem& problem, const abi::AttentionPreparation& from) {
  const std::int64_t heads = problem.query_heads + (from.values_from_keys != 0 ? 1 : 2) * problem.kv_heads;
  require(from.projections != nullptr && from.query_norm != nullptr && from.key_norm != nullptr,
          "projections or norms of a preparation are null");
  require(from.rotary_live >= 0 && from.rotary_live <= problem.head_dim / 2, "rotary_live ", from.rotary_live,
          " is outside 0..", problem.head_dim / 2);
  require(problem.key_channels == 0 || (from.values_from_keys == 1 && 2 * from.rotary_live == problem.key_channels),
          "a preparation for keys of ", problem.key_channels, " channels turns ", from.rotary_live, " pairs",
          from.values_from_keys == 1 ? "" : " and has values of its own");
  require(from.rotary_live == 0 || (from.cosine != nullptr && from.sine != nullptr),
          "the angles of a preparation are null");
  require(!misaligned(from.projections, 16) && from.projection_stride % 8 == 0 &&
              from.projection_stride >= heads * problem.head_dim,
          "projections must start at a multiple of 16 bytes with a stride of whole 8 elements, at least ",
          heads * problem.head_dim, "; the stride is ", from.projection_stride);
  require(!misaligned(from.query_norm, 16) && !misaligned(from.key_norm, 16),
          "norm weights must start at a multiple of 16 bytes");
}

}  // namespace

void check_problem(const abi::AttentionProblem& problem, sdk::Reasons& reasons) {
  reasons.require(problem.device == abi::Device::cuda, "device ", sdk::to_string(problem.device), " is not cuda");
  reasons.require(problem.input == DType::bf16, "queries are ", sdk::to_string(problem.input), ", not bf16");
  reasons.require(problem.output == DType::bf16, "output is ", sdk::to_string(problem.output), ", not bf16");
  check_heads(problem, reasons);
  reasons.require(problem.query_heads <= 65535, problem.query_heads, " query heads are more than 65535");
  const bool known = std::find(std::begin(kHeadDims), std::end(kHeadDims), problem.head_dim) != std::end(kHeadDims);
  reasons.require(known, "head_dim ", problem.head_dim, " is none of 64, 96, 128, 256, 512");
  const bool shared = problem.key_channels != 0;
  reasons.require(!shared || serves_shared(problem.head_dim, problem.key_channels), "keys of ", problem.key_channels,
                  " channels of ", problem.head_dim, " are neither 32 of 128 nor 128 of 512");
  reasons.require(!shared || problem.layout.element == DType::bf16, "in the shared form KV element ",
                  sdk::to_string(problem.layout.element), " is not bf16");
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
  const std::int64_t group = problem.query_heads / std::max<std::int64_t>(1, problem.kv_heads);
  reasons.require((problem.fusions & abi::kFusePreparation) == 0 || group <= kDecodeRows,
                  "the preparation is fused for ", kDecodeRows, " query heads a KV head at most, not for ", group);
  check_layout(problem.layout, kElements, "neither bf16 nor i8; set the cache's storage to one of them", reasons);
  reasons.require(problem.layout.alignment % kAlignment == 0 && problem.layout.alignment > 0,
                  "KV blocks are aligned to ", problem.layout.alignment, " bytes, not to a multiple of ", kAlignment);
}

std::vector<abi::KvLayout> readable_layouts() {
  return layouts_of(kElements);
}

void check_call(const abi::AttentionProblem& problem, const abi::AttentionArgs& args, std::uint64_t workspace_bytes) {
  check_view(problem, args, workspace_bytes);
  const abi::BatchView& batch = *args.batch;
  const abi::KvView& view = *args.kv;
  require(batch.max_rows <= problem.max_context, "a step of sequences of up to ", batch.max_rows,
          " rows exceeds the planned context of ", problem.max_context);
  if (batch.token_count == 0) return;
  if (args.preparation != nullptr) check_preparation(problem, *args.preparation);
  require(!misaligned(args.queries, 16) && args.query_stride % 8 == 0,
          "queries must start at a multiple of 16 bytes with a stride of whole 8 elements; the stride is ",
          args.query_stride);
  require(!misaligned(args.output, 4) && args.output_stride % 2 == 0,
          "the output must start at a multiple of 4 bytes with an even stride; the stride is ", args.output_stride);
  const std::int64_t step = 16 / sdk::element_bytes(view.layout.element);
  require(!misaligned(view.keys, 16) && !misaligned(view.values, 16) && view.row_stride % step == 0 &&
              view.block_stride % step == 0 && view.head_stride % step == 0,
          "keys and values must start at a multiple of 16 bytes with strides of whole ", step, " elements; they are ",
          view.block_stride, " a block, ", view.row_stride, " a row, ", view.head_stride, " a head");
}

}  // namespace facet::attention::cuda
