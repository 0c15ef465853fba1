#include "flash/item.h"

#include <algorithm>
#include <limits>

namespace facet::attention {

namespace {

// Rows from which copying a block to fp32 once is cheaper than converting it for every tile of rows.
constexpr std::int64_t kWidenRows = 8;

KvElement element_of(const abi::KvLayout& layout) {
  return layout.element == abi::DType::f32    ? KvElement::f32
         : layout.element == abi::DType::bf16 ? KvElement::bf16
                                              : KvElement::i8;
}

}  // namespace

void clear_state(SoftmaxState state, std::int64_t rows, std::int64_t stride) {
  std::fill(state.max, state.max + rows, -std::numeric_limits<float>::infinity());
  std::fill(state.sum, state.sum + rows, 0.0f);
  std::fill(state.rows, state.rows + rows * stride, 0.0f);
}

void ItemRunner::pack_queries(const Item& item) {
  const abi::AttentionProblem& problem = plan_.problem;
  float* to = scratch_.queries;
  for (std::int64_t token = item.token_begin; token < item.token_end; ++token) {
    const std::int64_t row = args_.batch->token_begin[item.sequence] + token;
    const float* from = static_cast<const float*>(args_.queries) + row * args_.query_stride +
                        item.kv_head * plan_.group * problem.head_dim;
    for (std::int64_t head = 0; head < plan_.group; ++head) {
      for (std::int64_t d = 0; d < problem.head_dim; ++d) to[d] = from[d] * problem.scale;
      std::fill(to + problem.head_dim, to + plan_.stride, 0.0f);
      to += plan_.stride;
      from += problem.head_dim;
    }
  }
}

// Addresses and scales of positions [begin, end), stored from `begin % key_block` on.
void ItemRunner::find_rows(const Item& item, std::int64_t begin, std::int64_t end) {
  const abi::KvView& view = *args_.kv;
  const std::int64_t bytes = sdk::element_bytes(view.layout.element);
  const std::int64_t base = begin - begin % plan_.key_block;
  sdk::for_each_kv_run(view, item.sequence, begin, end, [&](const sdk::KvRun& run) {
    for (std::int64_t i = 0; i < run.count; ++i) {
      const std::int64_t key = run.position + i - base;
      const std::int64_t offset = run.offset + i * view.row_stride + item.kv_head * view.head_stride;
      scratch_.keys[key] = static_cast<const std::byte*>(view.keys) + offset * bytes;
      scratch_.values[key] = static_cast<const std::byte*>(view.values) + offset * bytes;
      if (view.layout.scales == abi::KvScales::none) continue;
      const std::int64_t scale = run.scale_offset + i * view.scale_row_stride + item.kv_head * view.scale_head_stride;
      scratch_.key_scales[key] = view.key_scales[scale];
      scratch_.value_scales[key] = view.value_scales[scale];
    }
  });
}

// Addresses of the keys at [begin, end) of the next block, in the shared form of the rows' values, behind which the
// keys lie. Slots it leaves out repeat the first one: a hint only.
void ItemRunner::find_next_keys(const Item& item, std::int64_t begin, std::int64_t end) {
  const abi::KvView& view = *args_.kv;
  const std::int64_t bytes = sdk::element_bytes(view.layout.element);
  const std::int64_t base = begin - begin % plan_.key_block;
  const auto* rows = static_cast<const std::byte*>(view.key_channels > 0 ? view.values : view.keys);
  sdk::for_each_kv_run(view, item.sequence, begin, end, [&](const sdk::KvRun& run) {
    for (std::int64_t i = 0; i < run.count; ++i) {
      const std::int64_t offset = run.offset + i * view.row_stride + item.kv_head * view.head_stride;
      scratch_.next_keys[run.position + i - base] = rows + offset * bytes;
    }
  });
  std::fill(scratch_.next_keys + (end - base), scratch_.next_keys + plan_.key_block, scratch_.next_keys[0]);
}

// Which keys of the block at `base` each row sees; false when none sees any.
bool ItemRunner::see_block(const Item& item, std::int64_t base, BlockTask& task) const {
  const std::int64_t first = args_.batch->first_position[item.sequence];
  const auto local = [&](std::int64_t position) {
    return static_cast<std::int32_t>(std::clamp<std::int64_t>(position - base, 0, plan_.key_block));
  };
  std::int64_t row = 0;
  for (std::int64_t token = item.token_begin; token < item.token_end; ++token) {
    const std::int64_t position = first + token;
    const std::int32_t begin = local(sdk::window_begin(position, plan_.problem.window));
    const std::int32_t end = local(position + 1);
    for (std::int64_t head = 0; head < plan_.group; ++head, ++row) {
      scratch_.row_begin[row] = begin;
      scratch_.row_end[row] = end;
    }
  }
  task.key_begin = scratch_.row_begin[0];
  task.key_end = scratch_.row_end[row - 1];
  return task.key_begin < task.key_end;
}

void ItemRunner::attend_part(const Item& item, std::int64_t part, SoftmaxState state) {
  const std::int64_t first = args_.batch->first_position[item.sequence];
  const std::int64_t begin =
      std::max(part * kPartKeys, sdk::window_begin(first + item.token_begin, plan_.problem.window));
  const std::int64_t end = std::min((part + 1) * kPartKeys, first + item.token_end);
  const bool scaled = plan_.problem.layout.scales != abi::KvScales::none;
  BlockTask task{};
  task.row_count = (item.token_end - item.token_begin) * plan_.group;
  task.head_dim = plan_.problem.head_dim;
  task.key_channels = plan_.problem.key_channels;
  task.stride = plan_.stride;
  task.wide_stride = plan_.wide_stride;
  task.key_block = plan_.key_block;
  task.element_bytes = sdk::element_bytes(plan_.problem.layout.element);
  task.row_begin = scratch_.row_begin;
  task.row_end = scratch_.row_end;
  task.queries = scratch_.queries;
  task.keys = scratch_.keys;
  task.values = scratch_.values;
  task.key_scales = scaled ? scratch_.key_scales : nullptr;
  task.value_scales = scaled ? scratch_.value_scales : nullptr;
  task.element = element_of(plan_.problem.layout);
  task.widen = task.row_count >= kWidenRows || task.key_channels > 0;
  task.scores = scratch_.scores;
  task.wide_keys = scratch_.wide_keys;
  task.wide_values = scratch_.wide_values;
  task.state = state;
  for (std::int64_t base = begin - begin % plan_.key_block; base < end; base += plan_.key_block) {
    if (!see_block(item, base, task)) continue;
    find_rows(item, base + task.key_begin, base + task.key_end);
    const std::int64_t next = base + plan_.key_block;  // within the same part, which ends at a block
    task.next_keys = next < end ? scratch_.next_keys : nullptr;
    if (next < end) find_next_keys(item, next, std::min(next + plan_.key_block, end));
    kernels_.attend_block(task);
  }
}

void ItemRunner::run_whole(const Item& item) {
  const std::int64_t rows = (item.token_end - item.token_begin) * plan_.group;
  pack_queries(item);
  clear_state(scratch_.total, rows, plan_.stride);
  for (std::int64_t part = item.part_begin; part < item.part_end; ++part) {
    clear_state(scratch_.part, rows, plan_.stride);
    attend_part(item, part, scratch_.part);
    kernels_.fold(scratch_.total, scratch_.part, rows, plan_.stride);
  }
  for (std::int64_t row = 0; row < rows; ++row) {
    write_row(item, row, scratch_.total.rows + row * plan_.stride, scratch_.total.sum[row]);
  }
}

void ItemRunner::run_part(const Item& item, SoftmaxState part) {
  const std::int64_t rows = (item.token_end - item.token_begin) * plan_.group;
  pack_queries(item);
  clear_state(part, rows, plan_.stride);
  attend_part(item, item.part_begin, part);
}

void ItemRunner::write_row(const Item& item, std::int64_t row, const float* sums, float sum) const {
  const std::int64_t head_dim = plan_.problem.head_dim;
  const std::int64_t token = args_.batch->token_begin[item.sequence] + item.token_begin + row / plan_.group;
  const std::int64_t head = item.kv_head * plan_.group + row % plan_.group;
  kernels_.finish(sums, sum, static_cast<float*>(args_.output) + token * args_.output_stride + head * head_dim,
                  head_dim);
}

}  // namespace facet::attention
