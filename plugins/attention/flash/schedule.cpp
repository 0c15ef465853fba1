#include "flash/schedule.h"

#include <algorithm>

namespace facet::attention {

namespace {

std::int64_t token_count(const abi::BatchView& batch, std::int64_t sequence) {
  return batch.token_begin[sequence + 1] - batch.token_begin[sequence];
}

// Items per worker below which a call is split over the keys as well.
constexpr std::int64_t kItemsPerWorker = 2;

}  // namespace

SoftmaxState take_state(Arena& arena, std::int64_t rows, std::int64_t stride) {
  SoftmaxState state{};
  state.max = arena.take<float>(rows);
  state.sum = arena.take<float>(rows);
  state.rows = arena.take<float>(rows * stride);
  return state;
}

WorkerScratch take_scratch(Arena& arena, const FlashPlan& plan) {
  WorkerScratch scratch{};
  scratch.queries = arena.take<float>(plan.chunk_rows * plan.stride);
  scratch.part = take_state(arena, plan.chunk_rows, plan.stride);
  scratch.total = take_state(arena, plan.chunk_rows, plan.stride);
  scratch.row_begin = arena.take<std::int32_t>(plan.chunk_rows);
  scratch.row_end = arena.take<std::int32_t>(plan.chunk_rows);
  scratch.scores = arena.take<float>(plan.chunk_rows * plan.key_block);
  scratch.keys = arena.take<const void*>(plan.key_block);
  scratch.next_keys = arena.take<const void*>(plan.key_block);
  scratch.values = arena.take<const void*>(plan.key_block);
  scratch.key_scales = arena.take<float>(plan.key_block);
  scratch.value_scales = arena.take<float>(plan.key_block);
  scratch.wide_keys = arena.take<float>(plan.key_block * plan.wide_stride);
  scratch.wide_values = arena.take<float>(plan.key_block * plan.wide_stride);
  return scratch;
}

CallScratch take_call_scratch(Arena& arena, const FlashPlan& plan) {
  CallScratch scratch{};
  scratch.first_item = arena.take<std::int64_t>(plan.problem.max_sequences + 1);
  scratch.parts = arena.take<float>(plan.part_floats);
  return scratch;
}

std::int64_t first_part(const FlashPlan& plan, const abi::BatchView& batch, std::int64_t sequence) {
  return sdk::window_begin(batch.first_position[sequence], plan.problem.window) / kPartKeys;
}

std::int64_t part_count(const FlashPlan& plan, const abi::BatchView& batch, std::int64_t sequence) {
  const std::int64_t last = batch.first_position[sequence] + token_count(batch, sequence) - 1;
  return last / kPartKeys - first_part(plan, batch, sequence) + 1;
}

Schedule make_schedule(const FlashPlan& plan, const abi::BatchView& batch, std::int64_t* first_item) {
  const std::int64_t heads = plan.problem.kv_heads;
  std::int64_t whole = 0;
  std::int64_t parts = 0;
  std::int64_t most_tokens = 0;
  for (std::int64_t s = 0; s < batch.sequence_count; ++s) {
    const std::int64_t tokens = token_count(batch, s);
    if (tokens == 0) continue;
    whole += heads * sdk::ceil_div(tokens, plan.chunk_tokens);
    parts += heads * part_count(plan, batch, s);
    most_tokens = std::max(most_tokens, tokens);
  }
  const std::int64_t rows = most_tokens * plan.group;
  Schedule schedule{};
  schedule.part_stride = sdk::round_up(rows * (plan.stride + 2), 16);
  schedule.split = plan.workers > 1 && whole < kItemsPerWorker * plan.workers && parts > whole &&
                   most_tokens <= plan.chunk_tokens && parts * schedule.part_stride <= plan.part_floats;
  for (std::int64_t s = 0; s < batch.sequence_count; ++s) {
    first_item[s] = schedule.items;
    const std::int64_t tokens = token_count(batch, s);
    if (tokens == 0) continue;
    schedule.items += heads * (schedule.split ? part_count(plan, batch, s) : sdk::ceil_div(tokens, plan.chunk_tokens));
  }
  first_item[batch.sequence_count] = schedule.items;
  return schedule;
}

Item find_item(const FlashPlan& plan, const abi::BatchView& batch, const Schedule& schedule,
               const std::int64_t* first_item, std::int64_t index) {
  const std::int64_t* found = std::upper_bound(first_item, first_item + batch.sequence_count + 1, index) - 1;
  Item item{};
  item.sequence = found - first_item;
  item.index = index;
  const std::int64_t local = index - *found;
  const std::int64_t heads = plan.problem.kv_heads;
  const std::int64_t tokens = token_count(batch, item.sequence);
  const std::int64_t part = first_part(plan, batch, item.sequence);
  if (schedule.split) {
    const std::int64_t parts = part_count(plan, batch, item.sequence);
    item.kv_head = local / parts;
    item.token_end = tokens;
    item.part_begin = part + local % parts;
    item.part_end = item.part_begin + 1;
    return item;
  }
  // The last chunks see the most keys: they go first, so that no worker is left alone with them.
  const std::int64_t chunk = sdk::ceil_div(tokens, plan.chunk_tokens) - 1 - local / heads;
  item.kv_head = local % heads;
  item.token_begin = chunk * plan.chunk_tokens;
  item.token_end = std::min(tokens, item.token_begin + plan.chunk_tokens);
  const std::int64_t first = batch.first_position[item.sequence];
  item.part_begin = sdk::window_begin(first + item.token_begin, plan.problem.window) / kPartKeys;
  item.part_end = (first + item.token_end - 1) / kPartKeys + 1;
  return item;
}

}  // namespace facet::attention
