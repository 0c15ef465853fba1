// Who computes what: work items of one call, and the scratch memory each worker owns.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/call.h"
#include "flash/kernels.h"

namespace facet::attention {

// Keys whose online softmax is one chain. The parts of a row lie at absolute positions [n * 1024, (n + 1) * 1024) and
// are always folded in ascending order, so a row has the same bits whether one worker walks all parts or many share
// them. 1,024 keys of 256 bf16 channels are 1 MiB of K and V: long enough to hide the fold, short enough to split 8k
// over 8.
inline constexpr std::int64_t kPartKeys = 1024;

// Hands out aligned pieces of the workspace. With a null base it only counts, so sizes and places come from one code
// path.
class Arena {
 public:
  explicit Arena(void* base) : base_(static_cast<std::byte*>(base)) {}
  template <typename T>
  T* take(std::int64_t count) {
    std::byte* place = base_ == nullptr ? nullptr : base_ + used_;
    used_ += sdk::round_up(count * static_cast<std::int64_t>(sizeof(T)), 64);
    return reinterpret_cast<T*>(place);
  }
  std::int64_t used() const { return used_; }

 private:
  std::byte* base_;
  std::int64_t used_ = 0;
};

// Numbers that a plan fixes.
struct FlashPlan {
  abi::AttentionProblem problem;
  std::int64_t group;         // query heads of one KV head
  std::int64_t stride;        // floats of a packed row
  std::int64_t wide_stride;   // floats of a widened row
  std::int64_t chunk_tokens;  // query tokens that share one pass over K and V
  std::int64_t chunk_rows;    // chunk_tokens * group
  std::int64_t key_block;
  std::int64_t part_floats;  // room for the parts of split items
  std::int64_t workers;
  std::int64_t worker_bytes;  // scratch of one worker
  std::uint64_t workspace_bytes;
};

// Scratch of one worker.
struct WorkerScratch {
  float* queries;  // [chunk_rows, stride]
  SoftmaxState part;
  SoftmaxState total;
  std::int32_t* row_begin;
  std::int32_t* row_end;
  float* scores;
  const void** keys;
  const void** next_keys;
  const void** values;
  float* key_scales;
  float* value_scales;
  float* wide_keys;
  float* wide_values;
};

SoftmaxState take_state(Arena& arena, std::int64_t rows, std::int64_t stride);
WorkerScratch take_scratch(Arena& arena, const FlashPlan& plan);

// Everything behind the worker scratch.
struct CallScratch {
  std::int64_t* first_item;  // [sequences + 1] items before a sequence
  float* parts;              // [part_floats]
};
CallScratch take_call_scratch(Arena& arena, const FlashPlan& plan);

// Number of parts that the new tokens of a sequence can see.
std::int64_t first_part(const FlashPlan& plan, const abi::BatchView& batch, std::int64_t sequence);
std::int64_t part_count(const FlashPlan& plan, const abi::BatchView& batch, std::int64_t sequence);

// The items of one call. Normally an item is (sequence, KV head, chunk of query tokens). When there are fewer of them
// than workers can use, and every sequence is one chunk, an item is (sequence, KV head, part of the keys) and a second
// loop folds the parts. The choice never changes a bit.
struct Schedule {
  bool split;
  std::int64_t items;
  std::int64_t part_stride;  // floats of one part: rows, then max, then sum
};

struct Item {
  std::int64_t sequence;
  std::int64_t kv_head;
  std::int64_t token_begin, token_end;  // relative to the sequence
  std::int64_t part_begin, part_end;
  std::int64_t index;  // of its part memory
};

// Fills first_item. Cheap: one pass over the sequences.
Schedule make_schedule(const FlashPlan& plan, const abi::BatchView& batch, std::int64_t* first_item);
Item find_item(const FlashPlan& plan, const abi::BatchView& batch, const Schedule& schedule,
               const std::int64_t* first_item, std::int64_t index);

}  // namespace facet::attention
