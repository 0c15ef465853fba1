#include "kv_plan_check.h"

#include <algorithm>

#include "facet/base/error.h"
#include "facet/sdk/attention.h"

namespace facet {
namespace {

bool equal(const abi::KvLayout& a, const abi::KvLayout& b) {
  return a.addressing == b.addressing && a.order == b.order && a.element == b.element && a.scales == b.scales &&
         a.block_rows == b.block_rows && a.alignment == b.alignment;
}

std::string text_of(const abi::KvLayout& layout) {
  return fmt::format("{}, alignment {}", sdk::to_string(layout), layout.alignment);
}

bool power_of_two(std::uint64_t value) {
  return value != 0 && (value & (value - 1)) == 0;
}

// One view being checked; the first violation throws.
class ViewCheck {
 public:
  ViewCheck(const KvGroup& group, const abi::KvView& view, std::size_t layer)
      : group_(group), view_(view), layer_(layer), pool_(group.pool.memory()) {}

  template <typename Value, typename Allowed>
  void require(bool holds, const char* field, const Value& value, const Allowed& allowed) const {
    if (holds) return;
    throw_error(ErrorKind::run, "{}: the view of layer {} of the {} group has {} = {}; allowed is {}",
                describe(group_.cache.plugin()), layer_, group_.spec.name, field, value, allowed);
  }

  void equal_count(const char* field, std::int64_t value, std::int64_t expected) const {
    require(value == expected, field, value, expected);
  }

  // In elements; no stride is larger than the pool, which also keeps the products below exact.
  void stride(const char* field, std::int64_t value) const {
    require(value >= 1 && static_cast<std::uint64_t>(value) <= pool_.bytes, field, value,
            fmt::format("1 to the {} bytes of the pool", pool_.bytes));
  }

  // The array begins in the pool and its last element of the last block ends in it.
  void array(const char* field, const void* data, std::int64_t element, std::int64_t block, std::int64_t row,
             std::int64_t head, std::int64_t width) const {
    require(data != nullptr, field, "null", "a place in the pool");
    const auto begin = reinterpret_cast<std::uintptr_t>(pool_.data), at = reinterpret_cast<std::uintptr_t>(data);
    require(at >= begin && at - begin < pool_.bytes, field, fmt::format("{}", data),
            fmt::format("{} and the {} bytes behind it", pool_.data, pool_.bytes));
    // In double: it cannot overflow, and below 2^53 it is exact.
    const auto steps = [](std::int64_t count, std::int64_t length) {
      return static_cast<double>(count - 1) * static_cast<double>(length);
    };
    const double elements = steps(group_.plan.block_count, block) +
                            steps(static_cast<std::int64_t>(view_.layout.block_rows), row) +
                            steps(view_.kv_heads, head) + static_cast<double>(width);
    const double left = static_cast<double>(pool_.bytes - (at - begin));
    if (elements * static_cast<double>(element) <= left) return;
    throw_error(ErrorKind::run,
                "{}: the view of layer {} of the {} group places {} blocks at {} with block_stride {}, row_stride {} "
                "and head_stride {}: they end {:.0f} bytes behind it, and the pool ends {:.0f} bytes behind it",
                describe(group_.cache.plugin()), layer_, group_.spec.name, group_.plan.block_count, field, block, row,
                head, elements * static_cast<double>(element), left);
  }

 private:
  const KvGroup& group_;
  const abi::KvView& view_;
  std::size_t layer_;
  abi::Memory pool_;
};

}  // namespace

void check_planned_bytes(const LoadedPlugin& plugin, const char* field, std::uint64_t bytes) {
  if (bytes <= kMaxPlannedBytes) return;
  throw_error(ErrorKind::plugin, "{} planned {} = {}; allowed are 0 to {} (64 TiB)", describe(plugin), field, bytes,
              kMaxPlannedBytes);
}

void check_kv_plan(const LoadedPlugin& plugin, const abi::KvProblem& problem, const abi::KvLayout& layout,
                   const abi::KvPlan& plan) {
  Problems problems;
  const auto range = [&](const char* field, std::int64_t value, std::int64_t least, std::int64_t most) {
    if (value < least || value > most) problems.add("{} = {}; allowed are {} to {}", field, value, least, most);
  };
  const auto at_least = [&](const char* field, std::int64_t value, std::int64_t least) {
    if (value < least) problems.add("{} = {}; allowed is {} or more", field, value, least);
  };
  if (!equal(plan.layout, layout)) problems.add("layout = {}; asked was {}", text_of(plan.layout), text_of(layout));
  if (!power_of_two(plan.pool_alignment) || plan.pool_alignment > kMaxPoolAlignment) {
    problems.add("pool_alignment = {}; allowed are powers of two from 1 to {}", plan.pool_alignment, kMaxPoolAlignment);
  }
  if (plan.pool_bytes > kMaxPlannedBytes)
    problems.add("pool_bytes = {}; allowed are 0 to {}", plan.pool_bytes, kMaxPlannedBytes);
  if (plan.host_bytes > kMaxPlannedBytes)
    problems.add("host_bytes = {}; allowed are 0 to {}", plan.host_bytes, kMaxPlannedBytes);
  at_least("block_count", plan.block_count, 1);
  at_least("sequence_blocks", plan.sequence_blocks, 1);
  range("max_sequence_tokens", plan.max_sequence_tokens, 1, problem.max_context);
  at_least("max_chunk", plan.max_chunk, 1);
  at_least("rollback_depth", plan.rollback_depth, 0);
  range("prefix_reuse", plan.prefix_reuse, 0, 1);
  problems.throw_if_any(ErrorKind::plugin, fmt::format("{} made a plan that cannot be", describe(plugin)));
}

void check_kv_view(const KvGroup& group, const abi::KvView& view, std::size_t layer, std::int64_t sequences) {
  const ViewCheck check(group, view, layer);
  if (!equal(view.layout, group.plan.layout))
    check.require(false, "layout", text_of(view.layout), text_of(group.plan.layout));
  check.require(view.layout.block_rows > 0, "block_rows", view.layout.block_rows, "1 or more");
  check.equal_count("kv_heads", view.kv_heads, group.spec.kv_heads);
  check.equal_count("head_dim", view.head_dim, group.spec.head_dim);
  check.equal_count("key_channels", view.key_channels, group.key_channels);
  check.stride("block_stride", view.block_stride);
  check.stride("row_stride", view.row_stride);
  check.stride("head_stride", view.head_stride);
  const std::int64_t element = sdk::element_bytes(view.layout.element);
  const std::int64_t keys = sdk::key_width(view.head_dim, view.key_channels);
  check.array("keys", view.keys, element, view.block_stride, view.row_stride, view.head_stride, keys);
  check.array("values", view.values, element, view.block_stride, view.row_stride, view.head_stride, view.head_dim);
  if (view.key_channels > 0) {
    const void* const behind = static_cast<const char*>(view.values) + view.head_dim * element;
    check.require(view.keys == behind, "keys", fmt::ptr(view.keys), fmt::format("{}, behind the value", behind));
  }
  if (view.layout.scales == abi::KvScales::per_row_head) {
    check.stride("scale_block_stride", view.scale_block_stride);
    check.stride("scale_row_stride", view.scale_row_stride);
    check.stride("scale_head_stride", view.scale_head_stride);
    for (const auto& [field, data] : {std::pair{"key_scales", view.key_scales}, {"value_scales", view.value_scales}}) {
      check.array(field, data, sizeof(float), view.scale_block_stride, view.scale_row_stride, view.scale_head_stride,
                  1);
    }
  }
  const bool ring = view.layout.addressing == abi::KvAddressing::ring;
  const auto rows = static_cast<std::int64_t>(view.layout.block_rows);
  check.require(ring ? view.ring_rows >= 1 && view.ring_rows <= rows : view.ring_rows == 0, "ring_rows", view.ring_rows,
                ring ? fmt::format("1 to block_rows = {}", rows) : std::string("0 without a ring"));
  if (sequences == 0) return;
  check.require(view.block_table != nullptr, "block_table", "null", fmt::format("a table of {} sequences", sequences));
  check.require(view.table_stride >= 1, "table_stride", view.table_stride, "1 or more");
}

void check_kv_table_shared(const KvGroup& group, const abi::KvView& view, std::size_t layer) {
  const abi::KvView& first = group.views.front();
  if (view.block_table == first.block_table && view.table_stride == first.table_stride) return;
  throw_error(
      ErrorKind::run,
      "{}: the view of layer {} of the {} group has block_table = {} with table_stride {}; allowed is the table of "
      "layer 0, {} with {}",
      describe(group.cache.plugin()), layer, group.spec.name, fmt::ptr(view.block_table), view.table_stride,
      fmt::ptr(first.block_table), first.table_stride);
}

void check_kv_table(const KvGroup& group, const abi::KvView& view, std::int64_t sequences) {
  const std::int32_t* const end = view.block_table + sequences * view.table_stride;
  const std::int64_t blocks = group.plan.block_count;
  const std::int32_t* const wrong =
      std::find_if(view.block_table, end, [=](std::int32_t block) { return block < -1 || block >= blocks; });
  if (wrong == end) return;
  const std::int64_t at = wrong - view.block_table;
  throw_error(ErrorKind::run, "{}: block_table[{}, {}] of the {} group = {}; allowed are -1 to {}",
              describe(group.cache.plugin()), at / view.table_stride, at % view.table_stride, group.spec.name, *wrong,
              blocks - 1);
}

}  // namespace facet
