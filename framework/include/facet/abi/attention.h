// Attention over a KV cache for one ragged batch.
#pragma once

#include "facet/abi/kv_layout.h"
#include "facet/abi/types.h"

namespace facet::abi {

inline constexpr std::uint32_t kAttentionInterfaceVersion = 0;

struct AttentionProblem {
  std::uint32_t size;
  Device device;
  std::int32_t layer;
  DType input;   // of q
  DType output;  // of the result
  std::uint32_t reserved;
  std::int64_t query_heads;  // query head h reads KV head h / (query_heads / kv_heads)
  std::int64_t kv_heads;
  std::int64_t head_dim;
  std::int64_t window;  // 0: every earlier key; else query i sees key j when j <= i and i - j < window (counts itself)
  float scale;          // multiplies q k^T; 1.0 for Gemma 4
  float reserved_scale;
  std::int64_t max_step_tokens;  // tokens of one step over all sequences
  std::int64_t max_sequences;
  std::int64_t max_context;  // rows of one sequence
  KvLayout layout;           // all members zero while layouts() is asked
};

struct AttentionPlan {
  std::uint32_t size;
  std::uint32_t reserved;
  void* handle;
  std::uint64_t workspace_bytes;
};

struct AttentionArgs {
  std::uint32_t size;
  std::uint32_t reserved;
  Stream stream;
  const BatchView* batch;
  const KvView* kv;            // new rows of this step are already written
  const void* queries;         // [token_count, query_heads, head_dim], normalised and rotated
  std::int64_t query_stride;   // elements between tokens
  void* output;                // [token_count, query_heads, head_dim]
  std::int64_t output_stride;  // elements between tokens
  Memory workspace;
};

// A row that may see no key gives zeros, never NaN. Rows of a block past the written ones may hold anything, NaN
// included.
class Attention {
 public:
  virtual std::uint32_t supports(const AttentionProblem& problem, TextSink reasons) const noexcept = 0;
  // Layouts it can read, best first, at most `capacity` of them; returns how many there are.
  virtual std::uint32_t layouts(const AttentionProblem& problem, KvLayout* out,
                                std::uint32_t capacity) const noexcept = 0;
  virtual Status plan(const AttentionProblem& problem, AttentionPlan* plan, TextSink error) noexcept = 0;
  virtual Status run(const AttentionPlan& plan, const AttentionArgs& args, TextSink error) noexcept = 0;
  virtual void release(AttentionPlan* plan) noexcept = 0;

 protected:
  ~Attention() = default;
};

}  // namespace facet::abi
