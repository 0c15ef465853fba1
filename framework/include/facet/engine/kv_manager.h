// The cache policies of a pipeline, one instance for each group of layers with the same shape, kept in step with each
// other.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "facet/backend/backend.h"
#include "facet/config/config.h"
#include "facet/engine/plugin_call.h"
#include "facet/memory/memory_plan.h"

namespace facet {

// Layers that share head shape and window. `layers` are indices into the model.
struct KvGroupSpec {
  std::string name;  // "sliding" or "global"; names the config table
  std::vector<std::int32_t> layers;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t window = 0;
  // Channels of a key that turn, where every other channel is the value's times a weight; 0: keys are their own. More
  // than 0: the cache may have the shared form (abi::KvView).
  std::int64_t turned_channels = 0;
};

struct KvLimits {
  std::int64_t max_sequences = 1;
  std::int64_t max_context = 1;
  std::int64_t max_chunk = 1;        // of one sequence in one step
  std::int64_t max_step_tokens = 1;  // of all of them
};

// One group bound to its policy; planned first, then given memory.
struct KvGroup {
  KvGroupSpec spec;
  std::int64_t key_channels = 0;  // as in abi::KvView: 0, or spec.turned_channels in the shared form
  PluginInstance<abi::KvCache> cache;
  std::string options;  // resolved, as text
  std::vector<Refusal> refused;
  abi::KvPlan plan{};
  CallCounter counter;  // steps in which the policy fixed its tables
  DeviceBuffer pool;
  std::vector<abi::KvView> views;  // one for each layer, of the current step
};

// Outcome of asking for rows.
enum class KvResult { ok, no_memory };

// Sequences live in all groups or in none.
class KvManager {
 public:
  // max_sequences: open at the same time, as every group was planned for.
  KvManager(std::vector<KvGroup> groups, std::int64_t max_sequences);

  std::int64_t max_sequences() const { return max_sequences_; }

  const std::vector<KvGroup>& groups() const { return groups_; }
  std::vector<KvGroup>& groups() { return groups_; }
  // Allocates and binds the pools.
  void allocate(Backend& backend);

  // Least over the groups.
  std::int64_t max_chunk() const;
  std::int64_t max_sequence_tokens() const;
  // Sequences of max_context tokens that the pools hold at the same time.
  std::int64_t sequences_that_fit() const;
  bool prefix_reuse() const;

  // Starts a sequence in every group with as long a common prefix as all of them hold, at most `limit` tokens; returns
  // its length.
  std::int64_t open(std::uint64_t sequence, std::span<const std::int32_t> tokens, std::uint64_t salt,
                    std::int64_t limit);
  // Room for `count` more rows in every group, or in none.
  KvResult reserve(std::uint64_t sequence, std::int64_t count);
  // Plugin and reason of the last no_memory.
  const std::string& last_refusal() const { return last_refusal_; }
  void cancel(std::uint64_t sequence) noexcept;
  // Fixes tables and views for the sequences of a step. Throws Error(run) naming plugin, field and both values when a
  // view is not what was planned or leads out of the pool.
  void begin_step(std::span<const std::uint64_t> sequences);
  // View of model layer `layer` for the current step.
  const abi::KvView& view(std::int32_t layer) const;
  void commit(std::uint64_t sequence, std::span<const std::int32_t> tokens);
  void close(std::uint64_t sequence) noexcept;

  // Sum over the groups, and the most ever seen at the end of a step.
  struct Bytes {
    std::uint64_t reserved = 0;
    std::uint64_t used = 0;
  };
  Bytes bytes() const;
  std::vector<abi::KvUsage> usage() const;

 private:
  std::vector<KvGroup> groups_;
  std::int64_t max_sequences_;
  std::string last_refusal_;
  std::vector<std::pair<std::size_t, std::size_t>> layer_view_;  // model layer -> group, index in group
};

}  // namespace facet
