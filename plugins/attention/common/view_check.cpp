#include "view_check.h"

#include <algorithm>

namespace facet::attention {

using abi::DType;
using abi::KvAddressing;
using abi::KvOrder;
using abi::KvScales;

void check_heads(const abi::AttentionProblem& problem, sdk::Reasons& reasons) {
  reasons.require(problem.kv_heads > 0 && problem.query_heads > 0, problem.query_heads, " query heads and ",
                  problem.kv_heads, " KV heads: both must be positive");
  reasons.require(problem.kv_heads <= 0 || problem.query_heads % problem.kv_heads == 0, problem.query_heads,
                  " query heads are not divisible by ", problem.kv_heads, " KV heads");
}

void check_layout(const abi::KvLayout& layout, std::span<const DType> elements, const char* otherwise,
                  sdk::Reasons& reasons) {
  const bool addressed = layout.addressing == KvAddressing::contiguous || layout.addressing == KvAddressing::ring ||
                         layout.addressing == KvAddressing::paged;
  reasons.require(addressed, "KV addressing ", static_cast<std::uint32_t>(layout.addressing),
                  " is none of contiguous, ring, paged");
  reasons.require(layout.order == KvOrder::token_major || layout.order == KvOrder::head_major, "KV order ",
                  static_cast<std::uint32_t>(layout.order), " is neither token_major nor head_major");
  reasons.require(std::find(elements.begin(), elements.end(), layout.element) != elements.end(), "KV element ",
                  sdk::to_string(layout.element), " is ", otherwise);
  const bool scaled = layout.scales == KvScales::per_row_head;
  reasons.require(scaled || layout.scales == KvScales::none, "KV scales ", static_cast<std::uint32_t>(layout.scales),
                  " is neither none nor per_row_head");
  reasons.require(scaled == (layout.element == DType::i8), "KV element ", sdk::to_string(layout.element),
                  scaled ? " takes no scales" : " needs a scale a row and head");
  reasons.require(layout.block_rows > 0, "KV block_rows is 0; a problem needs the exact number");
}

std::vector<abi::KvLayout> layouts_of(std::span<const DType> elements) {
  std::vector<abi::KvLayout> layouts;
  for (const DType element : elements) {
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

void check_rows(const abi::AttentionProblem& problem, const abi::KvView& view) {
  require(view.kv_heads == problem.kv_heads && view.head_dim == problem.head_dim, "the KV view has ", view.kv_heads,
          " heads of ", view.head_dim, " and the plan was made for ", problem.kv_heads, " of ", problem.head_dim);
  require(view.key_channels == problem.key_channels, "the KV view has key_channels ", view.key_channels,
          " and the plan was made for ", problem.key_channels);
  const std::int64_t bytes = view.head_dim * sdk::element_bytes(view.layout.element);
  require(view.key_channels == 0 || view.keys == nullptr || static_cast<const char*>(view.values) + bytes == view.keys,
          "the KV view has the shared form, and its keys do not lie behind their values");
}

void check_view(const abi::AttentionProblem& problem, const abi::AttentionArgs& args, std::uint64_t workspace_bytes) {
  require(args.batch != nullptr && args.kv != nullptr, "the call has no batch or no KV view");
  const abi::BatchView& batch = *args.batch;
  const abi::KvView& view = *args.kv;
  const abi::KvLayout &seen = view.layout, &planned = problem.layout;
  require(batch.token_count <= problem.max_step_tokens && batch.sequence_count <= problem.max_sequences, "a step of ",
          batch.token_count, " tokens of ", batch.sequence_count, " sequences exceeds the planned ",
          problem.max_step_tokens, " tokens of ", problem.max_sequences, " sequences");
  require(seen.addressing == planned.addressing && seen.order == planned.order && seen.element == planned.element &&
              seen.scales == planned.scales && seen.block_rows == planned.block_rows,
          "the KV view is ", sdk::to_string(seen), " and the plan was made for ", sdk::to_string(planned));
  check_rows(problem, view);
  require((seen.addressing == KvAddressing::ring) == (view.ring_rows > 0), "ring_rows is ", view.ring_rows, " for KV ",
          sdk::to_string(seen));
  require(args.workspace.bytes >= workspace_bytes, "the workspace has ", args.workspace.bytes,
          " bytes and the plan needs ", workspace_bytes);
  const bool prepares = args.preparation != nullptr;
  require(!prepares || (problem.fusions & abi::kFusePreparation) != 0,
          "the call has a preparation and the plan was made without");
  require(!prepares || batch.max_new_tokens <= 1, "a preparation came with a step of up to ", batch.max_new_tokens,
          " tokens a sequence; it serves steps of one");
  if (batch.token_count == 0) return;
  require(
      (prepares || args.queries != nullptr) && args.output != nullptr && view.keys != nullptr && view.values != nullptr,
      "queries, output, keys or values are null");
  require(seen.scales == KvScales::none || (view.key_scales != nullptr && view.value_scales != nullptr),
          "the KV view has no scales");
}

}  // namespace facet::attention
