// Flash attention with mma.sync: one block walks the keys of one tile of packed queries. Serves decode (16 rows, the
// keys split over blocks) and prefill (64 rows) for every head size, layout and element.
//
// A tile step: S = Q K^T by warps that share out rows and keys; largest scores through shared memory; P = exp2(S - m)
// as bf16 in shared memory; O += P V by warps that share out rows and columns. K of the next step is under way during P
// V, V of this step during Q K^T.
#pragma once

#include "attention/cuda/kv_tile.cuh"

namespace facet::attention::cuda {

template <int kDimT, int kRowsT, bool kInt8T>
struct MmaShape {
  static constexpr int kDim = kDimT;
  static constexpr int kRows = kRowsT;  // packed queries of a block
  static constexpr bool kInt8 = kInt8T;
  static constexpr bool kDecode = kRowsT == kDecodeRows;
  static constexpr int kKeys = 64;  // of a tile: one panel of P
  // The columns of P V are shared out in steps of 8: four warps for 96 columns in decode.
  static constexpr int kWarps = kDecode && kDimT <= 128 ? 4 : 8;
  static constexpr int kThreads = kWarps * 32;
  static constexpr int kRowGroups = kRows / 16;
  static constexpr int kGroups = kWarps / kRowGroups;  // warps that share 16 rows
  static constexpr int kWarpKeys = kKeys / kGroups;
  static constexpr int kWarpColumns = kDim / kGroups;
  static constexpr int kColumnTiles = kWarpColumns / 8;
  static_assert(kWarpKeys % 8 == 0 && kWarpColumns % 8 == 0);

  using Rows = TileRows<kKeys, kInt8>;
  static constexpr int kQueryBytes = tile_bytes(kDim, kRows);
  static constexpr int kTileBytes = tile_bytes(kDim, kKeys);
  static constexpr int kWeightBytes = kRows * kKeys * 2;
  static constexpr int kExchangeBytes = kGroups * kRows * 4;
  static constexpr int kSharedBytes =
      kQueryBytes + 2 * kTileBytes + kWeightBytes + kExchangeBytes + 2 * static_cast<int>(sizeof(Rows)) + 1024;
  static_assert(!kDecode || kMaxSplits * kRows * 4 <= kTileBytes);
};

// The work of a block: rows [row0, row0 + rows) of a sequence, keys [low, high).
struct Work {
  int sequence, head;
  int token_begin, first_position;
  int row0, rows;
  int low, high;
  int parts;  // blocks that share the keys
};

template <typename Shape>
class MmaBlock {
 public:
  __device__ MmaBlock(const FlashParams& params, const Work& work, unsigned char* shared) : p_(params), work_(work) {
    const auto address = (shared_address(shared) + 1023u) & ~1023u;
    unsigned char* base = shared + (address - shared_address(shared));
    queries_ = address;
    keys_ = queries_ + Shape::kQueryBytes;
    values_ = keys_ + Shape::kTileBytes;
    weights_ = values_ + Shape::kTileBytes;
    combine_ = reinterpret_cast<float*>(base + Shape::kQueryBytes);  // over the keys, when they are done with
    base += Shape::kQueryBytes + 2 * Shape::kTileBytes + Shape::kWeightBytes;
    exchange_ = reinterpret_cast<float*>(base);
    rows_ = reinterpret_cast<typename Shape::Rows*>(base + Shape::kExchangeBytes);
    warp_ = static_cast<int>(threadIdx.x) / 32;
    lane_ = static_cast<int>(threadIdx.x) % 32;
    row_base_ = warp_ % Shape::kRowGroups * 16;
    group_ = warp_ / Shape::kRowGroups;
    for (int half = 0; half < 2; ++half) {
      const int row = own_row(half);
      query_position_[half] = row < work.rows ? work.first_position + (work.row0 + row) / params.group : -1;
    }
  }

  __device__ void run() {
    find(0);
    load_queries();
    __syncthreads();
    load_keys(0);
    commit_copies();
    load_values(0);
    commit_copies();
    const int tiles = (work_.high - work_.low + Shape::kKeys - 1) / Shape::kKeys;
    for (int tile = 0; tile < tiles; ++tile) step(tile, tile + 1 < tiles);
    finish_sums();
  }

  __device__ void write_output() const {
    for (int half = 0; half < 2; ++half) {
      const int row = own_row(half);
      if (row >= work_.rows) continue;
      const float factor = sum_[half] > 0.0f ? 1.0f / sum_[half] : 0.0f;
      __nv_bfloat16* out = output_row(row) + group_ * Shape::kWarpColumns + (lane_ & 3) * 2;
#pragma unroll
      for (int c = 0; c < Shape::kColumnTiles; ++c) {
        *reinterpret_cast<std::uint32_t*>(out + c * 8) =
            pack_bf16(out_[c][half * 2] * factor, out_[c][half * 2 + 1] * factor);
      }
    }
  }

  __device__ void write_part(int part) const {
    float* to = part_of(part);
    for (int half = 0; half < 2; ++half) {
      const int row = own_row(half);
      if (row >= work_.rows) continue;
      float* out = to + row * Shape::kDim + group_ * Shape::kWarpColumns + (lane_ & 3) * 2;
#pragma unroll
      for (int c = 0; c < Shape::kColumnTiles; ++c) {
        __stcg(reinterpret_cast<float2*>(out + c * 8), make_float2(out_[c][half * 2], out_[c][half * 2 + 1]));
      }
      if (group_ == 0 && (lane_ & 3) == 0) {
        __stcg(to + Shape::kRows * Shape::kDim + row, largest_[half]);
        __stcg(to + Shape::kRows * (Shape::kDim + 1) + row, sum_[half]);
      }
    }
  }

  // The last block of a (sequence, KV head) to arrive folds all parts in their order. Leaves the counter at zero.
  __device__ void combine_if_last() {
    __threadfence();
    __syncthreads();
    __shared__ bool last;
    if (threadIdx.x == 0) {
      std::uint32_t* counter = p_.counters + pair();
      last = atomicAdd(counter, 1u) == static_cast<std::uint32_t>(work_.parts - 1);
      if (last) *counter = 0;
    }
    __syncthreads();
    if (!last) return;
    __threadfence();
    weigh_parts();
    __syncthreads();
    for (int at = static_cast<int>(threadIdx.x) * 2; at < work_.rows * Shape::kDim; at += Shape::kThreads * 2) {
      const int row = at / Shape::kDim;
      float2 sum = make_float2(0.0f, 0.0f);
#pragma unroll 8
      for (int part = 0; part < work_.parts; ++part) {
        const float weight = combine_[part * Shape::kRows + row];
        const float2 value = __ldcg(reinterpret_cast<const float2*>(part_of(part) + at));
        sum.x = fmaf(weight, value.x, sum.x);
        sum.y = fmaf(weight, value.y, sum.y);
      }
      *reinterpret_cast<std::uint32_t*>(output_row(row) + at % Shape::kDim) = pack_bf16(sum.x, sum.y);
    }
  }

 private:
  __device__ int own_row(int half) const {
    return row_base_ + lane_ / 4 + half * 8;
  }
  __device__ int pair() const {
    return work_.sequence * static_cast<int>(gridDim.y) + work_.head;
  }
  __device__ float* part_of(int part) const {
    return p_.parts + (static_cast<std::int64_t>(pair()) * p_.splits + part) * kPartFloats<Shape::kDim>;
  }
  __device__ __nv_bfloat16* output_row(int row) const {
    const int packed = work_.row0 + row;
    const std::int64_t token = work_.token_begin + packed / p_.group;
    const int head = work_.head * p_.group + packed % p_.group;
    return static_cast<__nv_bfloat16*>(p_.output) + token * p_.output_stride + head * Shape::kDim;
  }

  __device__ void load_queries() const {
    constexpr int kChunks = Shape::kDim / 8;
    for (int i = static_cast<int>(threadIdx.x); i < Shape::kRows * kChunks; i += Shape::kThreads) {
      const int row = i / kChunks;
      const int chunk = i % kChunks;
      uint4 value = make_uint4(0, 0, 0, 0);
      if (row < work_.rows) {
        const int packed = work_.row0 + row;
        const std::int64_t token = work_.token_begin + packed / p_.group;
        const int head = work_.head * p_.group + packed % p_.group;
        value = __ldg(reinterpret_cast<const uint4*>(static_cast<const __nv_bfloat16*>(p_.queries) +
                                                     token * p_.query_stride + head * Shape::kDim + chunk * 8));
      }
      const std::uint32_t sign = p_.query_sign;
      asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(chunk_address<Shape::kRows>(queries_, row, chunk)),
                   "r"(value.x ^ sign), "r"(value.y ^ sign), "r"(value.z ^ sign), "r"(value.w ^ sign)
                   : "memory");
    }
  }
  __device__ void find(int tile) {
    find_rows<Shape::kKeys, Shape::kInt8>(rows_[tile & 1], p_.kv, work_.sequence, work_.head,
                                          work_.low + tile * Shape::kKeys, work_.low, work_.high);
  }
  __device__ void load_keys(int tile) const {
    load_tile<Shape::kDim, Shape::kKeys, Shape::kThreads, Shape::kInt8>(keys_, p_.kv.keys, rows_[tile & 1]);
  }
  __device__ void load_values(int tile) const {
    load_tile<Shape::kDim, Shape::kKeys, Shape::kThreads, Shape::kInt8>(values_, p_.kv.values, rows_[tile & 1]);
  }

  __device__ void step(int tile, bool more) {
    if (tile == 0) {
      wait_copies<1>();
    } else {
      wait_copies<0>();
    }
    __syncthreads();  // K is there; everybody is done with V of the step before
    if (tile > 0) {
      load_values(tile);
      commit_copies();
    }
    if (more) find(tile + 1);
    score();
    mask(tile);
    float largest[2];
    row_largest(largest);
    if ((lane_ & 3) == 0) {
      for (int half = 0; half < 2; ++half) exchange_[group_ * Shape::kRows + own_row(half)] = largest[half];
    }
    __syncthreads();  // K is done with; the largest scores are there
    if (more) load_keys(tile + 1);
    commit_copies();
    weigh(rows_[tile & 1]);
    wait_copies<1>();
    __syncthreads();  // V and P are there
    add_values();
  }

  // S = Q K^T for 16 rows and kWarpKeys keys.
  __device__ void score() {
#pragma unroll
    for (int n = 0; n < Shape::kWarpKeys / 8; ++n) {
      for (int i = 0; i < 4; ++i) score_[n][i] = 0.0f;
    }
    const int key0 = group_ * Shape::kWarpKeys;
#pragma unroll 4
    for (int k = 0; k < Shape::kDim / 32; ++k) {
      std::uint32_t a[2][4];
      for (int i = 0; i < 2; ++i) {
        load_matrices(a[i], chunk_address<Shape::kRows>(queries_, row_base_ + lane_ % 16, k * 4 + i * 2 + lane_ / 16));
      }
#pragma unroll
      for (int n = 0; n < Shape::kWarpKeys / 8; ++n) {
        std::uint32_t b[4];
        load_matrices(b, chunk_address<Shape::kKeys>(keys_, key0 + n * 8 + lane_ % 8, k * 4 + lane_ / 8));
        multiply_add(score_[n], a[0], b[0], b[1]);
        multiply_add(score_[n], a[1], b[2], b[3]);
      }
    }
  }

  __device__ void mask(int tile) {
    const int key0 = work_.low + tile * Shape::kKeys + group_ * Shape::kWarpKeys + (lane_ & 3) * 2;
    const typename Shape::Rows& rows = rows_[tile & 1];
#pragma unroll
    for (int n = 0; n < Shape::kWarpKeys / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int key = key0 + n * 8 + i % 2;
        const int query = query_position_[i / 2];
        // `low` is nonzero only under a window or a split, whose earlier keys other blocks have.
        const bool seen = key <= query && key < work_.high && (p_.window == 0 || query - key < p_.window);
        float scale = p_.scale;
        if constexpr (Shape::kInt8)
          scale *= rows.key_scale[group_ * Shape::kWarpKeys + n * 8 + (lane_ & 3) * 2 + i % 2];
        score_[n][i] = seen ? score_[n][i] * scale : -INFINITY;
      }
    }
  }

  __device__ void row_largest(float (&largest)[2]) const {
    for (int half = 0; half < 2; ++half) {
      float most = -INFINITY;
#pragma unroll
      for (int n = 0; n < Shape::kWarpKeys / 8; ++n) {
        most = fmaxf(most, fmaxf(score_[n][half * 2], score_[n][half * 2 + 1]));
      }
      most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
      largest[half] = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
    }
  }

  // P = exp2(S - largest) into shared memory; sums and O are brought to the new largest score.
  __device__ void weigh(const typename Shape::Rows& rows) {
    for (int half = 0; half < 2; ++half) {
      float most = largest_[half];
      for (int g = 0; g < Shape::kGroups; ++g) most = fmaxf(most, exchange_[g * Shape::kRows + own_row(half)]);
      // A row that has seen no key yet keeps -inf; its weights are exp2(-inf - 0).
      const float base = most == -INFINITY ? 0.0f : most;
      const float factor = exp2_fast(largest_[half] - base);
      largest_[half] = most;
      sum_[half] *= factor;
      const int row = own_row(half);
#pragma unroll
      for (int n = 0; n < Shape::kWarpKeys / 8; ++n) {
        float w0 = exp2_fast(score_[n][half * 2] - base);
        float w1 = exp2_fast(score_[n][half * 2 + 1] - base);
        sum_[half] += w0 + w1;
        const int key = group_ * Shape::kWarpKeys + n * 8 + (lane_ & 3) * 2;
        if constexpr (Shape::kInt8) {
          w0 *= rows.value_scale[key];
          w1 *= rows.value_scale[key + 1];
        }
        const std::uint32_t to =
            chunk_address<Shape::kRows>(weights_, row, key / 8) + static_cast<std::uint32_t>(key % 8) * 2;
        asm volatile("st.shared.u32 [%0], %1;" ::"r"(to), "r"(pack_bf16(w0, w1)) : "memory");
      }
#pragma unroll
      for (int c = 0; c < Shape::kColumnTiles; ++c) {
        out_[c][half * 2] *= factor;
        out_[c][half * 2 + 1] *= factor;
      }
    }
  }

  __device__ void add_values() {
    const int chunk0 = group_ * (Shape::kWarpColumns / 8);
#pragma unroll
    for (int k = 0; k < Shape::kKeys / 16; ++k) {
      std::uint32_t a[4];
      load_matrices(a, chunk_address<Shape::kRows>(weights_, row_base_ + lane_ % 16, k * 2 + lane_ / 16));
#pragma unroll
      for (int c = 0; c + 1 < Shape::kColumnTiles; c += 2) {
        std::uint32_t b[4];
        load_matrices_transposed(b, chunk_address<Shape::kKeys>(values_, k * 16 + lane_ % 16, chunk0 + c + lane_ / 16));
        multiply_add(out_[c], a, b[0], b[1]);
        multiply_add(out_[c + 1], a, b[2], b[3]);
      }
      if constexpr (Shape::kColumnTiles % 2 == 1) {
        constexpr int kLast = Shape::kColumnTiles - 1;
        std::uint32_t b0, b1;
        load_two_matrices_transposed(b0, b1, chunk_address<Shape::kKeys>(values_, k * 16 + lane_ % 16, chunk0 + kLast));
        multiply_add(out_[kLast], a, b0, b1);
      }
    }
  }

  // Sums of weights over all warps of a row group, in their order.
  __device__ void finish_sums() {
    for (int half = 0; half < 2; ++half) {
      float sum = sum_[half];
      sum += __shfl_xor_sync(0xffffffffu, sum, 1);
      sum += __shfl_xor_sync(0xffffffffu, sum, 2);
      if ((lane_ & 3) == 0) exchange_[group_ * Shape::kRows + own_row(half)] = sum;
    }
    __syncthreads();
    for (int half = 0; half < 2; ++half) {
      sum_[half] = 0.0f;
      for (int g = 0; g < Shape::kGroups; ++g) sum_[half] += exchange_[g * Shape::kRows + own_row(half)];
    }
  }

  // Weight of every part and row, so that the weighted sums are the output.
  __device__ void weigh_parts() {
    const int row = static_cast<int>(threadIdx.x);
    if (row >= work_.rows) return;
    float most = -INFINITY;
    for (int part = 0; part < work_.parts; ++part) {
      most = fmaxf(most, __ldcg(part_of(part) + Shape::kRows * Shape::kDim + row));
    }
    const float base = most == -INFINITY ? 0.0f : most;
    float sum = 0.0f;
    for (int part = 0; part < work_.parts; ++part) {
      const float* stats = part_of(part) + Shape::kRows * Shape::kDim + row;
      const float factor = exp2_fast(__ldcg(stats) - base);
      combine_[part * Shape::kRows + row] = factor;
      sum = fmaf(factor, __ldcg(stats + Shape::kRows), sum);
    }
    const float scale = sum > 0.0f ? 1.0f / sum : 0.0f;
    for (int part = 0; part < work_.parts; ++part) combine_[part * Shape::kRows + row] *= scale;
  }

  const FlashParams& p_;
  const Work work_;
  std::uint32_t queries_, keys_, values_, weights_;
  float* exchange_;
  float* combine_;
  typename Shape::Rows* rows_;
  int warp_, lane_, row_base_, group_;
  int query_position_[2];
  float score_[Shape::kWarpKeys / 8][4];
  float out_[Shape::kColumnTiles][4] = {};
  float largest_[2] = {-INFINITY, -INFINITY};
  float sum_[2] = {0.0f, 0.0f};
};

// False when this block has nothing to do. Call after wait_for_predecessor().
template <typename Shape>
__device__ bool find_work(const FlashParams& p, Work& work) {
  work.sequence = static_cast<int>(blockIdx.z);
  work.head = static_cast<int>(blockIdx.y);
  work.token_begin = p.token_begin[work.sequence];
  const int packed = (p.token_begin[work.sequence + 1] - work.token_begin) * p.group;
  if (packed == 0 || (packed <= p.decode_rows) != Shape::kDecode) return false;
  work.first_position = p.first_position[work.sequence];
  // Later tiles see more keys; they start first.
  work.row0 = Shape::kDecode ? 0 : static_cast<int>(gridDim.x - 1 - blockIdx.x) * Shape::kRows;
  work.rows = min(Shape::kRows, packed - work.row0);
  if (work.rows <= 0) return false;
  const int first = work.first_position + work.row0 / p.group;
  work.high = work.first_position + (work.row0 + work.rows - 1) / p.group + 1;
  work.low = p.window > 0 ? max(0, first - p.window + 1) : 0;
  work.parts = 1;
  if constexpr (Shape::kDecode) {
    // Splits of whole 16 rows; blocks past the last one leave.
    const int length = work.high - work.low;
    const int share = (((length + p.splits - 1) / p.splits) + 15) & ~15;
    work.parts = (length + share - 1) / share;
    const int begin = work.low + static_cast<int>(blockIdx.x) * share;
    if (begin >= work.high) return false;
    work.low = begin;
    work.high = min(work.high, begin + share);
  }
  return true;
}

template <typename Shape>
__global__ void __launch_bounds__(Shape::kThreads) mma_kernel(const __grid_constant__ FlashParams params) {
  extern __shared__ unsigned char shared[];
  wait_for_predecessor();
  let_successor_start();
  Work work;
  if (!find_work<Shape>(params, work)) return;
  MmaBlock<Shape> block(params, work, shared);
  block.run();
  if constexpr (Shape::kDecode) {
    if (work.parts > 1) {
      block.write_part(static_cast<int>(blockIdx.x));
      block.combine_if_last();
      return;
    }
  }
  block.write_output();
}

// Calls function.template operator()<kDim>() for the head size.
template <typename Function>
cudaError_t for_head_dim(std::int32_t head_dim, Function&& function) {
  switch (head_dim) {
    case 64:
      return function.template operator()<64>();
    case 96:
      return function.template operator()<96>();
    case 128:
      return function.template operator()<128>();
    case 256:
      return function.template operator()<256>();
    case 512:
      return function.template operator()<512>();
    default:
      return cudaErrorInvalidValue;
  }
}

template <typename Shape>
cudaError_t prepare_mma() {
  return cudaFuncSetAttribute(mma_kernel<Shape>, cudaFuncAttributeMaxDynamicSharedMemorySize, Shape::kSharedBytes);
}

template <typename Shape>
cudaError_t launch_mma(const FlashParams& params, const LaunchShape& shape, std::int32_t blocks) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(shape.kv_heads),
                        static_cast<unsigned>(shape.sequences));
  config.blockDim = dim3(Shape::kThreads);
  config.dynamicSmemBytes = Shape::kSharedBytes;
  config.stream = shape.stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, mma_kernel<Shape>, params);
}

}  // namespace facet::attention::cuda
