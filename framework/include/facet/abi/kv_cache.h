// Cache policies: who owns which rows, for how long, and what can be used again.
#pragma once

#include "facet/abi/kv_layout.h"
#include "facet/abi/types.h"

namespace facet::abi {

inline constexpr std::uint32_t kKvCacheInterfaceVersion = 2;

// A group of layers with one shape and one window; one instance of a policy serves one group.
struct KvProblem {
  std::uint32_t size;
  Device device;
  std::int64_t layer_count;
  std::int64_t kv_heads;
  std::int64_t head_dim;
  std::int64_t key_channels;     // 0: whole keys; else the shared form (KvView), even and below head_dim
  std::int64_t window;           // 0: rows are needed for ever; else a row is needed while position - row < window
  std::int64_t max_sequences;    // open at the same time
  std::int64_t max_context;      // rows of one sequence
  std::int64_t max_chunk;        // rows written for one sequence in one step, before they are read
  std::int64_t max_step_tokens;  // rows written for all sequences together in one step
};

struct KvPlan {
  std::uint32_t size;
  std::uint32_t prefix_reuse;  // 1: rows of ended sequences can serve new ones with the same prefix
  void* handle;                // the policy's own; dies in release()
  KvLayout layout;
  std::uint32_t reserved;
  std::uint64_t pool_bytes;          // of device memory, exactly
  std::uint64_t pool_alignment;      // power of two
  std::uint64_t host_bytes;          // of tables and bookkeeping at most
  std::int64_t block_count;          // blocks of the pool
  std::int64_t sequence_blocks;      // blocks that a sequence of max_context tokens holds while it decodes
  std::int64_t max_sequence_tokens;  // longest sequence that fits an empty pool, at most max_context
  std::int64_t max_chunk;            // rows of one sequence it accepts in one step
  std::int64_t rollback_depth;       // rows that rollback() can take back
};

// Everything in bytes of the pool; blocks are the policy's own unit of allocation.
struct KvUsage {
  std::uint32_t size;
  std::uint32_t reserved;
  std::int64_t blocks_total;
  std::int64_t blocks_free;    // usable now without evicting anything
  std::int64_t blocks_cached;  // held only for reuse; given up when needed
  std::int64_t sequences;
  std::uint64_t bytes_reserved;  // blocks that belong to open sequences, shared ones counted once
  std::uint64_t bytes_used;      // rows of open sequences that hold a token, shared ones counted once
  std::uint64_t reused_tokens;   // since bind()
  std::uint64_t evicted_blocks;  // since bind()
};

// Sequences are named by the host's ids; ids are not used twice. All calls come from one thread at a time.
// Life of a sequence: open -> (reserve -> begin_step/view -> commit | cancel)* -> close. rollback between steps.
class KvCache {
 public:
  virtual std::uint32_t supports(const KvProblem& problem, TextSink reasons) const noexcept = 0;
  // Layouts the policy can store with its options, best first; returns how many there are.
  virtual std::uint32_t layouts(const KvProblem& problem, KvLayout* out, std::uint32_t capacity) const noexcept = 0;
  // Exact sizes, nothing allocated.
  virtual Status plan(const KvProblem& problem, const KvLayout& layout, KvPlan* plan, TextSink error) noexcept = 0;
  // Starts with an empty pool of plan.pool_bytes. Called once before any sequence is opened.
  virtual Status bind(const KvPlan& plan, Memory pool, TextSink error) noexcept = 0;

  // How many leading tokens of `tokens` could be taken from the cache, at most `limit`. Looks only; compares tokens,
  // never only hashes. `salt` tells apart what must never be shared (adapter, model, tenant).
  virtual std::int64_t match(const std::int32_t* tokens, std::int64_t count, std::uint64_t salt,
                             std::int64_t limit) const noexcept = 0;
  // Starts a sequence whose first `reuse` tokens are taken from the cache; `reuse` is 0 or a value match() returned for
  // the same tokens since the last change. The rows it takes are pinned before anything else can be evicted.
  virtual Status open(std::uint64_t sequence, const std::int32_t* tokens, std::int64_t reuse, std::uint64_t salt,
                      TextSink error) noexcept = 0;
  // Room for `count` rows after the committed ones: all or nothing. out_of_memory changes nothing.
  virtual Status reserve(std::uint64_t sequence, std::int64_t count, TextSink error) noexcept = 0;
  // Gives back what reserve() took and commit() did not use.
  virtual void cancel(std::uint64_t sequence) noexcept = 0;
  // Fixes the block tables of the step; sequence i of the views is sequences[i].
  virtual Status begin_step(const std::uint64_t* sequences, std::int32_t count, TextSink error) noexcept = 0;
  // View of layer `layer` in [0, layer_count) for the sequences of begin_step(); valid until the next call that changes
  // the cache.
  virtual Status view(std::int64_t layer, KvView* view, TextSink error) noexcept = 0;
  // The first `count` reserved rows now hold `tokens`. Only from here on may match() find them.
  virtual Status commit(std::uint64_t sequence, const std::int32_t* tokens, std::int64_t count,
                        TextSink error) noexcept = 0;
  // Takes back the last `count` committed rows, at most rollback_depth.
  virtual Status rollback(std::uint64_t sequence, std::int64_t count, TextSink error) noexcept = 0;
  // Ends a sequence; unknown ids are ignored, so closing twice is harmless.
  virtual void close(std::uint64_t sequence) noexcept = 0;
  virtual void usage(KvUsage* usage) const noexcept = 0;
  virtual void release(KvPlan* plan) noexcept = 0;

 protected:
  ~KvCache() = default;
};

}  // namespace facet::abi
