// A decode step's own queries and KV row, made from the raw projections by the block that reads them: norms and
// rotations with the bits of the host's own launch (facet/sdk/cuda/head.cuh).
#pragma once

#include "attention/cuda/decode_ring.cuh"
#include "facet/sdk/cuda/head.cuh"

namespace facet::attention::cuda {

// Where the block that has the newest key puts it and its value.
struct NewRow {
  RowPlace place{-1, 0};    // in the cache; an offset below 0 is not written
  std::uint32_t tile = 0;   // of keys in shared memory, Shape::kValueOffset before that of values
  int in_tile = 0;          // the row
  float* scales = nullptr;  // int8: of the key, Shape::kKeys before that of the value
  bool in_ring = false;     // false: the tile is loaded later, from the cache
};

// A warp makes four queries at most; the third one makes the key, too, and the fourth one the value.
template <typename Shape>
class DecodeInputs {
 public:
  // What earlier steps and the model left; no results of this step.
  __device__ DecodeInputs(const FlashParams& params, const Work& work, int warp, int lane, bool newest)
      : p_(params),
        work_(work),
        warp_(warp),
        lane_(lane),
        makes_key_(newest && warp == kKeyWarp),
        makes_value_(newest && warp == kValueWarp) {
    query_weight_ = load_weight(p_.preparation.query_norm, warp_ < work_.rows);
    if constexpr (Shape::kShared) {
      ::facet::cuda::take_key_weight(query_weight_, load_weight(p_.preparation.key_norm, warp_ < work_.rows), kLive,
                                     lane_);
    }
    key_weight_ = load_weight(p_.preparation.key_norm, makes_key_);
  }

  // Asks for what this step made, after wait_for_predecessor(); nothing here waits for it.
  __device__ void ask() {
    const Preparation& from = p_.preparation;
    const auto* token = static_cast<const __nv_bfloat16*>(from.projections) + work_.token_begin * from.stride;
    const int kv_heads = static_cast<int>(gridDim.y) >> p_.head_shift;
    const int first_key = static_cast<int>(gridDim.y) * p_.group;
#pragma unroll
    for (int i = 0; i < kRowsOfWarp; ++i) {
      const int row = warp_ + i * Shape::kWarps;
      rows_[i] = load_raw(token + (work_.head * p_.group + row) * Shape::kDim, row < work_.rows);
    }
    const int head = first_key + work_.kv_head + (makes_value_ && from.values_from_keys == 0 ? kv_heads : 0);
    own_ = load_raw(token + head * Shape::kDim, makes_key_ || makes_value_);
    angles_ = load_angles();
  }
  // Writes queries to their tile, and the new row; a barrier of the block makes all of it seen.
  __device__ void make(std::uint32_t queries, const NewRow& to) {
    const float epsilon = p_.preparation.epsilon;
    // One way through the code for all rows: it is cold, and costs more than its work.
#pragma unroll 1
    for (int at = warp_; at < work_.rows; at += Shape::kWarps) {
      Row row = widen(rows_[0]);
      ::facet::cuda::norm(row, query_weight_, epsilon, kHalf);
      ::facet::cuda::rotate(row, angles_);
      if constexpr (Shape::kInt8) {
        store_for_codes(row, queries + static_cast<std::uint32_t>(at * Shape::kQueryPitch));
      } else {
        store_pairs(
            row, [&](int chunk) { return queries + static_cast<std::uint32_t>(at * Shape::kQueryPitch + chunk * 16); });
      }
#pragma unroll
      for (int i = 0; i + 1 < kRowsOfWarp; ++i) rows_[i] = rows_[i + 1];
    }
    if (!makes_key_ && !makes_value_) return;
    Row row = widen(own_);
    ::facet::cuda::norm(row, key_weight_, epsilon, kHalf);
    if (makes_key_) ::facet::cuda::rotate(row, angles_);
    store_row(row, to);
  }

 private:
  static constexpr int kVector = 4;
  static constexpr int kSlots = Shape::kDim > 256 ? 2 : 1;
  static constexpr int kHalf = Shape::kDim / 2;
  static constexpr int kLive = Shape::kKeyChannels / 2;  // pairs of a key in the shared form
  static constexpr int kRowsOfWarp = Shape::kRows / Shape::kWarps;
  static constexpr int kKeyWarp = 2, kValueWarp = 3;
  using Row = ::facet::cuda::Head<kVector, kSlots>;
  using Part = ::facet::cuda::Floats<kVector>;

  __device__ Row load_weight(const float* row, bool wanted) const {
    return ::facet::cuda::load_halves<kVector, kSlots>(row, row + kHalf, wanted ? kHalf : 0, 1.0f, 1.0f, lane_);
  }
  // A row of bf16 as it lies in memory.
  struct Raw {
    uint2 low[kSlots], high[kSlots];
  };
  __device__ Raw load_raw(const __nv_bfloat16* row, bool wanted) const {
    Raw raw;
#pragma unroll
    for (int slot = 0; slot < kSlots; ++slot) {
      const int at = slot * 32 + lane_;
      const bool known = wanted && at * kVector < kHalf;
      raw.low[slot] = known ? reinterpret_cast<const uint2*>(row)[at] : make_uint2(0, 0);
      raw.high[slot] = known ? reinterpret_cast<const uint2*>(row + kHalf)[at] : make_uint2(0, 0);
    }
    return raw;
  }
  __device__ static Part widen(uint2 raw) {
    return {{__uint_as_float(raw.x << 16), __uint_as_float(raw.x & 0xffff0000u), __uint_as_float(raw.y << 16),
             __uint_as_float(raw.y & 0xffff0000u)}};
  }
  __device__ static Row widen(const Raw& raw) {
    Row row;
#pragma unroll
    for (int slot = 0; slot < kSlots; ++slot) {
      row.low[slot] = widen(raw.low[slot]);
      row.high[slot] = widen(raw.high[slot]);
    }
    return row;
  }
  __device__ Row load_angles() const {
    const Preparation& from = p_.preparation;
    const std::int64_t at = static_cast<std::int64_t>(work_.token_begin) * from.live;
    const float* cosine = from.cosine + at;
    const float* sine = from.sine + at;
    if (from.angles_in_fours != 0)
      return ::facet::cuda::load_halves<kVector, kSlots>(cosine, sine, from.live, 1.0f, 0.0f, lane_);
    Row angles;
#pragma unroll
    for (int slot = 0; slot < kSlots; ++slot) {
#pragma unroll
      for (int e = 0; e < kVector; ++e) {
        const int pair = (slot * 32 + lane_) * kVector + e;
        angles.low[slot].at[e] = pair < from.live ? cosine[pair] : 1.0f;
        angles.high[slot].at[e] = pair < from.live ? sine[pair] : 0.0f;
      }
    }
    return angles;
  }

  __device__ static uint2 pack(const Part& part) {
    return make_uint2(pack_bf16(part.at[0], part.at[1]), pack_bf16(part.at[2], part.at[3]));
  }
  // The first `pairs` of a row in shared memory, whose chunks of 16 bytes lie where `address` says.
  template <typename Address>
  __device__ void store_pairs(const Row& row, const Address& address, int pairs = kHalf) const {
    ::facet::cuda::each_pair(row, pairs, lane_, [&](int at, const Part& low, const Part& high) {
      const auto half = static_cast<std::uint32_t>(at % 2 * 8);
      store8(address(at / 2) + half, pack(low));
      store8(address(at / 2 + pairs / 8) + half, pack(high));
    });
  }
  // A query that meets widened codes: of each 16 channels the even ones, then the odd ones.
  __device__ void store_for_codes(const Row& row, std::uint32_t to) const {
    const auto store = [&](int channel, const Part& part) {
      const auto at = to + static_cast<std::uint32_t>(channel / 16 * 32 + channel % 16);
      store4(at, pack_bf16(part.at[0], part.at[2]));
      store4(at + 16, pack_bf16(part.at[1], part.at[3]));
    };
    ::facet::cuda::each_pair(row, kHalf, lane_, [&](int at, const Part& low, const Part& high) {
      store(at * kVector, low);
      store(kHalf + at * kVector, high);
    });
  }
  __device__ void store_tile(const Row& row, std::uint32_t tile, int in_tile) const {
    store_pairs(row, [&](int chunk) { return Shape::address(tile, in_tile, chunk); });
  }
  // The key or the value, to the cache and, where its tile is there, to shared memory.
  __device__ void store_row(const Row& row, const NewRow& to) const {
    const std::uint32_t tile = to.tile + (makes_value_ ? Shape::kValueOffset : 0);
    const bool stored = to.place.offset >= 0;
    void* pool = makes_value_ ? p_.kv.values : p_.kv.keys;
    if constexpr (Shape::kShared) {
      store_part(row, to, static_cast<__nv_bfloat16*>(pool) + to.place.offset, makes_value_ ? kHalf : kLive,
                 makes_value_ ? 0 : Shape::kDim / 8);
    } else if constexpr (Shape::kInt8) {
      const ::facet::cuda::CodeScale codes = ::facet::cuda::code_scale(row);
      if (lane_ == 0) {
        if (stored) (makes_value_ ? p_.kv.value_scales : p_.kv.key_scales)[to.place.scale] = codes.scale;
        if (to.in_ring) to.scales[makes_value_ ? Shape::kKeys : 0] = codes.scale;
      }
      const std::uint32_t in_ring = Shape::address(tile, to.in_tile, 0);
      auto* cache = static_cast<std::int8_t*>(pool) + to.place.offset;
      ::facet::cuda::each_pair(row, kHalf, lane_, [&](int at, const Part& low, const Part& high) {
        const std::uint32_t low_codes = word_of_codes(low, codes), high_codes = word_of_codes(high, codes);
        if (stored) {
          reinterpret_cast<std::uint32_t*>(cache)[at] = low_codes;
          reinterpret_cast<std::uint32_t*>(cache + kHalf)[at] = high_codes;
        }
        if (!to.in_ring) return;
        store4(in_ring + static_cast<std::uint32_t>(at * kVector), low_codes);
        store4(in_ring + static_cast<std::uint32_t>(kHalf + at * kVector), high_codes);
      });
    } else {
      auto* cache = static_cast<__nv_bfloat16*>(pool) + to.place.offset;
      ::facet::cuda::each_pair(row, stored ? kHalf : 0, lane_, [&](int at, const Part& low, const Part& high) {
        reinterpret_cast<uint2*>(cache)[at] = pack(low);
        reinterpret_cast<uint2*>(cache + kHalf)[at] = pack(high);
      });
      if (to.in_ring) {
        store_tile(row, tile, to.in_tile);
      } else {
        // The copy engine will read what this thread wrote.
        async_fence_global();
      }
    }
  }
  // In the shared form: the first `pairs` of the key or the value to the cache and, where the tile is there, to chunks
  // of the tile's row from `chunk` on.
  __device__ void store_part(const Row& row, const NewRow& to, __nv_bfloat16* cache, int pairs, int chunk) const {
    ::facet::cuda::each_pair(row, to.place.offset >= 0 ? pairs : 0, lane_,
                             [&](int at, const Part& low, const Part& high) {
                               reinterpret_cast<uint2*>(cache)[at] = pack(low);
                               reinterpret_cast<uint2*>(cache + pairs)[at] = pack(high);
                             });
    if (to.in_ring) {
      store_pairs(
          row, [&](int at) { return Shape::address(to.tile, to.in_tile, chunk + at); }, pairs);
    } else {
      // The copy engine will read what this thread wrote.
      async_fence_global();
    }
  }
  __device__ static std::uint32_t word_of_codes(const Part& part, const ::facet::cuda::CodeScale& codes) {
    std::uint32_t word = 0;
#pragma unroll
    for (int e = 0; e < kVector; ++e) {
      word |= static_cast<std::uint32_t>(static_cast<std::uint8_t>(codes.code(part.at[e]))) << (8 * e);
    }
    return word;
  }

  const FlashParams& p_;
  const Work& work_;
  const int warp_, lane_;
  const bool makes_key_, makes_value_;
  Row query_weight_, key_weight_, angles_;
  Raw rows_[kRowsOfWarp], own_;
};

}  // namespace facet::attention::cuda
