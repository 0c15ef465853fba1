// One work item of attention/flash: packs the queries, walks the blocks of keys, hands them to the kernels.
#pragma once

#include "flash/schedule.h"

namespace facet::attention {

class ItemRunner {
 public:
  ItemRunner(const FlashPlan& plan, const Kernels& kernels, const abi::AttentionArgs& args, WorkerScratch scratch)
      : plan_(plan), kernels_(kernels), args_(args), scratch_(scratch) {}

  // All parts of the item, folded and written to the output.
  void run_whole(const Item& item);
  // The only part of the item, left in `part`.
  void run_part(const Item& item, SoftmaxState part);
  // Writes row `row` (token * group + head in group) of a folded state.
  void write_row(const Item& item, std::int64_t row, const float* sums, float sum) const;

 private:
  void pack_queries(const Item& item);
  void attend_part(const Item& item, std::int64_t part, SoftmaxState state);
  void find_rows(const Item& item, std::int64_t begin, std::int64_t end);
  void find_next_keys(const Item& item, std::int64_t begin, std::int64_t end);
  bool see_block(const Item& item, std::int64_t base, BlockTask& task) const;

  const FlashPlan& plan_;
  const Kernels& kernels_;
  const abi::AttentionArgs& args_;
  WorkerScratch scratch_;
};

// A state that has seen no key.
void clear_state(SoftmaxState state, std::int64_t rows, std::int64_t stride);

}  // namespace facet::attention
