// What the kernels of attention/flash_cuda get, and the functions that launch them. Plain data, read by g++ and nvcc.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace facet::attention::cuda {

// abi::KvView with 32-bit row counts: a sequence has fewer than 2^31 rows.
struct KvSource {
  void* keys;  // a kernel that makes the step's rows writes them
  void* values;
  float* key_scales;
  float* value_scales;
  std::int64_t block_stride, row_stride, head_stride;  // elements
  std::int64_t scale_block_stride, scale_row_stride, scale_head_stride;
  const std::int32_t* table;  // device memory
  std::int64_t table_stride;
  std::uint32_t block_rows;
  std::uint32_t ring_rows;     // 0: no ring
  std::uint32_t single_block;  // not 0: a sequence has one block, whatever the row
};

// abi::AttentionPreparation for the decode kernel.
struct Preparation {
  const void* projections;  // bf16; null: queries and rows are there
  std::int64_t stride;
  const float* query_norm;
  const float* key_norm;
  const float* cosine;
  const float* sine;
  std::int32_t live;  // pairs that turn
  float epsilon;
  std::int32_t values_from_keys;
  std::int32_t angles_in_fours;  // four angles may be read at once
};

// Rows of a tile of queries are packed: row = token * group + head within the group, for one KV head.
struct FlashParams {
  KvSource kv;
  const std::int32_t* token_begin;
  const std::int32_t* first_position;
  const void* queries;  // bf16
  std::int64_t query_stride;
  void* output;  // bf16
  std::int64_t output_stride;
  std::int32_t group;          // query heads of a KV head; decode: that a block takes
  std::int32_t group_inverse;  // 65536 / group, rounded up
  std::int32_t window;         // 0: global
  float scale;                 // of scores in the exponent of 2; positive, see query_sign
  std::uint32_t query_sign;    // flips the sign of two packed bf16 when the problem's scale is negative
  // A sequence of at most this many packed rows belongs to the decode kernel, others to the prefill kernel.
  std::int32_t decode_rows;
  std::int32_t box_rows;    // prefill with wgmma: rows of a copied box
  std::int32_t stages;      // tiles of keys and values in shared memory
  std::int32_t splits;      // decode: blocks that share the keys of a (sequence, KV head), whole clusters
  std::int32_t cluster;     // decode: blocks of a cluster, a power of two
  std::int32_t head_shift;  // decode: so many halvings of a KV head's query heads make those of a block
  std::int32_t inbox_rows;  // decode: packed rows of a block at most
  float* parts;             // decode with more than one cluster: [sequence, heads of a block, cluster, part_floats]
  std::uint32_t* counters;  // decode: [sequence, heads of a block, kMaxCluster], zero between launches
  Preparation preparation;  // decode
};

inline constexpr std::int32_t kDecodeRows = 16;  // rows of an mma tile: what the decode kernel packs
inline constexpr std::int32_t kFewRows = 8;      // columns of one: what its kernel for few rows packs
inline constexpr std::int32_t kPrefillRows = 64;
inline constexpr std::int32_t kMaxStages = 4;
inline constexpr std::int32_t kMaxCluster = 16;   // more than 8 blocks are allowed on request
inline constexpr std::int32_t kClusterSizes = 5;  // 1, 2, 4, 8, 16
inline constexpr std::int32_t kMaxClusters = 32;  // of one (sequence, heads of a block)

// What one cluster leaves: a slice for each of its blocks, together [kDecodeRows, head_dim] sums and for each block the
// largest score and the sum of weights of every row.
constexpr std::int64_t part_floats(std::int64_t head_dim) {
  return kDecodeRows * (head_dim + 2 * kMaxCluster);
}
template <int kDim>
inline constexpr std::int64_t kPartFloats = part_floats(kDim);

struct LaunchShape {
  std::int32_t head_dim;
  bool shared;  // form of the cache
  std::int32_t kv_heads;
  std::int32_t sequences;
  bool int8;
  bool few;  // decode: no sequence has more than kFewRows packed rows, and serves_few_rows()
  cudaStream_t stream;
};

// What the decode kernel of a head size and element can do.
struct DecodeLimits {
  std::int32_t stage_keys;             // keys of a stage
  std::int32_t stages[kClusterSizes];  // at most, in clusters of 1, 2, 4, 8, 16; 0: the device cannot place them
  std::int32_t blocks_at_once[kMaxStages][kClusterSizes];  // by stages - 1
};
// The shared form of the cache is served where a quarter of the channels of a head turns, for bf16.
constexpr bool serves_shared(std::int64_t head_dim, std::int64_t key_channels) {
  return (head_dim == 128 || head_dim == 512) && key_channels * 4 == head_dim;
}

// Head sizes for which there is a kernel for few rows: whole keys in bf16.
constexpr bool serves_few_rows(std::int64_t head_dim, std::int64_t key_channels, bool int8) {
  return head_dim == 256 && key_channels == 0 && !int8;
}

// prepare_*: sets the attributes of the kernels for this head size and element; before any launch.
// few: those of the kernel for few rows, where it serves.
cudaError_t prepare_decode(std::int32_t head_dim, bool int8, DecodeLimits& limits, DecodeLimits& few);
cudaError_t prepare_decode_shared(std::int32_t head_dim, DecodeLimits& limits);
cudaError_t prepare_prefill(std::int32_t head_dim, bool shared, bool int8);
cudaError_t launch_decode(const FlashParams& params, const LaunchShape& shape);
cudaError_t launch_decode_shared(const FlashParams& params, const LaunchShape& shape);
// wgmma: bf16 caches, positive scales, head sizes of whole 64 elements; in the shared form 512.
bool serves_prefill_wgmma(std::int32_t head_dim, bool shared);
// Rows of a tile of keys.
std::int32_t prefill_wgmma_keys(bool shared);
cudaError_t prepare_prefill_wgmma(std::int32_t head_dim, bool shared);
struct TensorMaps;
cudaError_t launch_prefill_wgmma(const FlashParams& params, const TensorMaps& maps, const LaunchShape& shape,
                                 std::int32_t max_new_tokens);
cudaError_t launch_prefill(const FlashParams& params, const LaunchShape& shape, std::int32_t max_new_tokens);

}  // namespace facet::attention::cuda
