// The parts that the time of a step goes to, and what each of them must move and compute at least.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "gemma4/gemma4_plan.h"

namespace facet::gemma4 {

// In the order of a step; a part's number is what Backend::enter_part() gets. Norms go with the linear they precede.
enum class StepPart : std::int32_t {
  inputs,  // embedding and rotary angles
  sliding_qkv,
  sliding_attention,  // with the norms and rotation of heads and the write of KV rows
  sliding_output,
  global_qkv,
  global_attention,
  global_output,
  gate_up,
  down,
  head,  // with soft cap and choice of tokens
  count,
};

const char* part_name(StepPart part);

// `sequences` that each get `new_tokens` after `context` rows, in `passes` over the weights.
struct StepWork {
  std::int64_t sequences = 1;
  std::int64_t context = 0;
  std::int64_t new_tokens = 1;
  std::int64_t passes = 1;
};

struct PartCost {
  double bytes = 0;       // weights once a pass, KV rows that are seen once, activations in and out
  double operations = 0;  // of products, a multiplication and an addition each
};

// By StepPart. The head has one row a sequence.
std::vector<PartCost> part_costs(const ModelPlan& plan, const StepWork& work);

// Bytes of weights that a module reads for `rows` rows, from the plan of the plugin that serves them.
std::uint64_t weight_bytes(const LinearModule& module, std::int64_t rows);

}  // namespace facet::gemma4
