// Attention over a KV cache for one ragged batch.
#pragma once

#include "facet/abi/kv_layout.h"
#include "facet/abi/types.h"

namespace facet::abi {

inline constexpr std::uint32_t kAttentionInterfaceVersion = 3;

// Work before the attention that a kernel may take into the same launch. A problem asks for a set of them, and a kernel
// takes all of them or refuses the problem; the host then does them in launches of its own.
enum AttentionFusion : std::uint32_t {
  // Steps of at most one new token a sequence (max_new_tokens is 1), of so many sequences as
  // AttentionPlan::prepared_counts names, may come with AttentionArgs::preparation: the kernel makes their queries and
  // writes their KV rows. Other steps of the same plan come prepared.
  kFusePreparation = 1u << 0,
};

struct AttentionProblem {
  std::uint32_t size;
  Device device;
  std::int32_t layer;
  DType input;               // of q
  DType output;              // of the result
  std::uint32_t fusions;     // bits of AttentionFusion
  std::int64_t query_heads;  // query head h reads KV head h / (query_heads / kv_heads)
  std::int64_t kv_heads;
  std::int64_t head_dim;
  std::int64_t key_channels;  // 0: whole keys; else the cache has the shared form (KvView), and queries come for it
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
  std::uint64_t
      prepared_counts;  // with kFusePreparation: bit n - 1 for steps of n sequences to come with a preparation
};

// What queries and KV rows of a step with one token a sequence are made from, all of it in the memory of the problem's
// device. For a token t of sequence s, at position p = first_position[s]:
//   q = turn(rmsnorm(q) * query_norm), k = turn(rmsnorm(k) * key_norm), v = rmsnorm(v), each head by itself, where
//   rmsnorm(x) = x / sqrt(mean(x^2) + epsilon) and turn takes the pair (x, y) of elements (i, i + head_dim / 2), i <
//   rotary_live, to (x cosine[t, i] - y sine[t, i], y cosine[t, i] + x sine[t, i]), other pairs to themselves.
// In the shared form values_from_keys is 1, key_channels is 2 rotary_live, pairs of q from rotary_live on are
// multiplied by key_norm as well, and of k only the pairs below rotary_live are stored. q is rounded to
// AttentionProblem::input; k and v are stored as row p of the sequence, rounded to the cache's element (i8: scale =
// largest magnitude / 127, codes rounded to nearest). Tokens past token_begin[sequence_count] have no row.
struct AttentionPreparation {
  std::uint32_t size;
  std::uint32_t values_from_keys;  // 1: there are no v heads, v is made from the raw k; else 0
  // [token_count, projection_stride] of AttentionProblem::input: q heads, k heads, then v heads unless
  // values_from_keys. 16-byte aligned.
  const void* projections;
  std::int64_t projection_stride;  // elements between tokens, whole 8
  const float* query_norm;         // [head_dim], 16-byte aligned; there before the step's first launch
  const float* key_norm;           // the same
  const float* cosine;             // [token_count, rotary_live]; made by an earlier launch of the step
  const float* sine;               // the same
  std::int64_t rotary_live;        // pairs of a head that turn, at most head_dim / 2
  float epsilon;
  std::uint32_t reserved;
};

struct AttentionArgs {
  std::uint32_t size;
  std::uint32_t reserved;
  Stream stream;
  const BatchView* batch;
  const KvView* kv;            // new rows of this step are already written, unless there is a preparation
  const void* queries;         // [token_count, query_heads, head_dim], normalised and rotated; null with a preparation
  std::int64_t query_stride;   // elements between tokens
  void* output;                // [token_count, query_heads, head_dim]
  std::int64_t output_stride;  // elements between tokens
  Memory workspace;
  const AttentionPreparation* preparation;  // in host memory; null without kFusePreparation, and for prepared steps
};

// A score is scale q k^T. In the shared form a key has only the channels that turn; the value stands for it in the
// others, where the query brings the key's weights: q k^T = sum over the key's channels of q k + sum over the others of
// q v.
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
