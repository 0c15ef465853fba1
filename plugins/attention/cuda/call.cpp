#include "attention/cuda/call.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace facet::attention::cuda {

namespace {

using abi::DType;
using abi::KvAddressing;
using abi::KvOrder;
using abi::KvScales;
using abi::Status;

constexpr std::int64_t kHeadDims[] = {64, 96, 128, 256, 512};
constexpr std::int64_t kMaxPosition = std::numeric_limits<std::int32_t>::max();
// Tiles are copied 16 bytes at a time.
constexpr std::uint32_t kAlignment = 16;

template <typename... Args>
void require(bool holds, const Args&... text) {
  if (!holds) sdk::fail(Status::invalid_argument, text...);
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

}  // namespace

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

void check_call(const abi::AttentionProblem& problem, const abi::AttentionArgs& args, std::uint64_t workspace_bytes) {
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
  require(args.workspace.bytes >= workspace_bytes, "the workspace has ", args.workspace.bytes,
          " bytes and the plan needs ", workspace_bytes);
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

}  // namespace facet::attention::cuda
