#include "facet/engine/step_arrays.h"

#include <algorithm>
#include <numeric>

#include "facet/sdk/numeric.h"

namespace facet {
namespace {

// Arrays begin at multiples of 64 bytes.
constexpr std::int64_t kUnit = 16;

std::int64_t padded(std::int64_t count) {
  return sdk::round_up(count, kUnit);
}

// Most columns that the table of a group can have.
std::int64_t widest_table(const KvGroup& group, std::int64_t max_context) {
  const abi::KvLayout& layout = group.plan.layout;
  return layout.addressing == abi::KvAddressing::paged
             ? sdk::ceil_div(max_context, static_cast<std::int64_t>(layout.block_rows))
             : 1;
}

}  // namespace

StepArrays::StepArrays(const KvManager& kv, std::int64_t max_tokens, std::int64_t max_sequences,
                       std::int64_t max_context)
    : max_context_(max_context) {
  std::int64_t count = 4 * padded(max_tokens) + padded(max_sequences + 1) + padded(max_sequences);
  for (const KvGroup& group : kv.groups()) count += padded(max_sequences * widest_table(group, max_context));
  bytes_ = static_cast<std::uint64_t>(count) * sizeof(std::int32_t);
}

void StepArrays::upload(Backend& backend, void* memory, const StepInput& input, KvManager& kv, std::int64_t tokens,
                        std::int64_t sequences) {
  staging_.clear();
  // Appends `count` values, then `filler` up to `whole`; says where they will lie.
  const auto add = [&](const std::int32_t* values, std::int64_t count, std::int64_t whole, std::int32_t filler) {
    const auto* place = static_cast<const std::int32_t*>(memory) + staging_.size();
    if (values != nullptr) staging_.insert(staging_.end(), values, values + count);
    staging_.resize(staging_.size() + static_cast<std::size_t>(padded(whole) - count), filler);
    return place;
  };
  const std::int64_t used = input.batch.token_count, open = input.batch.sequence_count;
  ids = add(input.ids, used, tokens, 0);
  positions = add(input.positions, used, tokens, 0);
  sequence = add(input.sequence, used, tokens, -1);
  std::vector<std::int32_t> numbers(static_cast<std::size_t>(tokens));
  std::iota(numbers.begin(), numbers.end(), 0);
  rows = add(numbers.data(), tokens, tokens, 0);
  batch = input.batch;
  batch.token_count = tokens;
  batch.sequence_count = static_cast<std::int32_t>(sequences);
  batch.token_begin = add(input.batch.token_begin, open + 1, sequences + 1, static_cast<std::int32_t>(used));
  batch.first_position = add(input.batch.first_position, open, sequences, 0);
  for (KvGroup& group : kv.groups()) {
    const std::int64_t stride = group.views.front().table_stride, widest = widest_table(group, max_context_);
    if (stride > widest) {
      throw_error(ErrorKind::run, "{}: the table of the {} group has table_stride = {}; allowed are 1 to {}",
                  describe(group.cache.plugin()), group.spec.name, stride, widest);
    }
    const std::int32_t* table = add(group.views.front().block_table, open * stride, sequences * stride, -1);
    for (abi::KvView& view : group.views) view.block_table = table;
  }
  backend.upload(memory, staging_.data(), staging_.size() * sizeof(std::int32_t));
}

}  // namespace facet
