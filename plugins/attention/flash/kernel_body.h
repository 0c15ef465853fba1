// Body of the attention kernels. Each kernel file defines `Simd` in an anonymous namespace and then includes this file
// inside that namespace: everything here has internal linkage and is compiled for one instruction set.
//
// Why the bits of a row do not depend on its neighbours: a score is one chain of fused multiply-adds along head_dim and
// one fixed tree over the lanes, whatever the tile; a weighted sum is one chain along the visible keys in ascending
// order, whatever the tile; widening bf16 and i8 codes to fp32 is exact.

#if defined(__clang__)
#define FACET_UNROLL _Pragma("clang loop unroll(full)")
#else
#define FACET_UNROLL _Pragma("GCC unroll 16")
#endif

using V = Simd::V;
constexpr std::int64_t kLanes = Simd::kLanes;
constexpr float kNoKey = -__builtin_inff();
constexpr std::int64_t kLineBytes = 64;
// Half of a first-level cache of 32 KiB; the rest is for query rows and sums.
constexpr std::int64_t kNearBytes = 16384;

// e^x for x <= 0: x = n ln2 + r, |r| <= ln2 / 2, e^r by the polynomial of Cephes expf (relative error below 2^-23
// before rounding). Below -87 the result would be denormal or zero and is zero.
inline V exp_lanes(V x) {
  const V bounded = Simd::max(x, Simd::set1(-87.0f));
  const V n = Simd::round(Simd::mul(bounded, Simd::set1(1.44269504088896341f)));
  V r = Simd::fma(n, Simd::set1(-0.693359375f), bounded);
  r = Simd::fma(n, Simd::set1(2.12194440e-4f), r);
  V p = Simd::set1(1.9875691500e-4f);
  p = Simd::fma(p, r, Simd::set1(1.3981999507e-3f));
  p = Simd::fma(p, r, Simd::set1(8.3334519073e-3f));
  p = Simd::fma(p, r, Simd::set1(4.1665795894e-2f));
  p = Simd::fma(p, r, Simd::set1(1.6666665459e-1f));
  p = Simd::fma(p, r, Simd::set1(5.0000001201e-1f));
  p = Simd::fma(p, Simd::mul(r, r), r);
  p = Simd::add(p, Simd::set1(1.0f));
  return Simd::zero_below(Simd::scale_by_power(p, n), x, -87.0f);
}

inline float exp_one(float x) {
  return Simd::first(exp_lanes(Simd::set1(x)));
}

// One step along head_dim of R x C scores.
template <int R, int C>
[[gnu::always_inline]] inline void dot_step(const float* queries, std::int64_t stride, const V (&keys)[C],
                                            V (&sums)[R][C]) {
  FACET_UNROLL
  for (int r = 0; r < R; ++r) {
    const V query = Simd::load(queries + r * stride);
    FACET_UNROLL
    for (int c = 0; c < C; ++c) sums[r][c] = Simd::fma(query, keys[c], sums[r][c]);
  }
}

// scores[r][c] = queries[r] . keys[c] for R rows and C keys. Tail: head_dim leaves half a vector at the end.
template <typename T, bool Tail, int R, int C>
inline void dot_tile(const float* queries, std::int64_t stride, const void* const* keys, std::int64_t vectors,
                     float* scores, std::int64_t score_stride) {
  V sums[R][C];
  const T* key[C];
  FACET_UNROLL
  for (int c = 0; c < C; ++c) key[c] = static_cast<const T*>(keys[c]);
  FACET_UNROLL
  for (int r = 0; r < R; ++r) {
    FACET_UNROLL
    for (int c = 0; c < C; ++c) sums[r][c] = Simd::zero();
  }
  for (std::int64_t d = 0; d < vectors * kLanes; d += kLanes) {
    V loaded[C];
    FACET_UNROLL
    for (int c = 0; c < C; ++c) loaded[c] = Simd::load(key[c] + d);
    dot_step<R, C>(queries + d, stride, loaded, sums);
  }
  if constexpr (Tail) {
    V loaded[C];
    FACET_UNROLL
    for (int c = 0; c < C; ++c) loaded[c] = Simd::load_half(key[c] + vectors * kLanes);
    dot_step<R, C>(queries + vectors * kLanes, stride, loaded, sums);
  }
  FACET_UNROLL
  for (int r = 0; r < R; ++r) {
    if constexpr (C == 4) {
      Simd::sum4(sums[r][0], sums[r][1], sums[r][2], sums[r][3], scores + r * score_stride);
    } else {
      FACET_UNROLL
      for (int c = 0; c < C; ++c) scores[r * score_stride + c] = Simd::sum(sums[r][c]);
    }
  }
}

// Brings a row of the cache near, while the processor is busy with another one.
inline void prefetch_row(const BlockTask& task, const void* row) {
  const std::int64_t bytes = task.head_dim * task.element_bytes;
  for (std::int64_t at = 0; at < bytes; at += kLineBytes) __builtin_prefetch(static_cast<const char*>(row) + at, 0, 2);
}

// Keys of [begin, end) that one of R rows sees: the rows are neighbours, so the last one sees the latest keys.
template <typename T, bool Tail, int R>
inline void dot_rows(const BlockTask& task, std::int64_t row, const void* const* keys, std::int64_t vectors,
                     std::int32_t begin, std::int32_t end) {
  const float* queries = task.queries + row * task.stride;
  float* scores = task.scores + row * task.key_block;
  const std::int32_t first = task.row_begin[row];
  const std::int32_t last = task.row_end[row + R - 1];
  std::int32_t key = begin > first ? begin : first;
  end = end < last ? end : last;
  // The tiles of rows share the four values to bring near: too many requests at once would wait for each other.
  const std::int64_t tiles = task.row_count / R;
  const std::int64_t ahead_begin = row / R * 4 / tiles;
  const std::int64_t ahead_end = (row / R + 1) * 4 / tiles;
  for (; key + 4 <= end; key += 4) {
    for (std::int64_t i = ahead_begin; i < ahead_end && i < 4; ++i) prefetch_row(task, task.values[key + i]);
    dot_tile<T, Tail, R, 4>(queries, task.stride, keys + key, vectors, scores + key, task.key_block);
  }
  for (; key < end; ++key) {
    dot_tile<T, Tail, R, 1>(queries, task.stride, keys + key, vectors, scores + key, task.key_block);
  }
}

// Keys go in groups that stay in the first-level cache while every row passes.
template <typename T, bool Tail>
void dot_all(const BlockTask& task, const void* const* keys, std::int64_t vectors) {
  const std::int64_t fitting = kNearBytes / (task.head_dim * static_cast<std::int64_t>(sizeof(T)));
  const auto step = static_cast<std::int32_t>(fitting < 4 ? 4 : fitting / 4 * 4);
  for (std::int32_t begin = task.key_begin; begin < task.key_end; begin += step) {
    const std::int32_t end = begin + step < task.key_end ? begin + step : task.key_end;
    std::int64_t row = 0;
    if constexpr (Simd::kTileRows == 4) {
      for (; row + 4 <= task.row_count; row += 4) dot_rows<T, Tail, 4>(task, row, keys, vectors, begin, end);
    }
    for (; row + 2 <= task.row_count; row += 2) dot_rows<T, Tail, 2>(task, row, keys, vectors, begin, end);
    for (; row < task.row_count; ++row) dot_rows<T, Tail, 1>(task, row, keys, vectors, begin, end);
  }
}

// Scores of row `row` become weights; the state's max and sum move on and its weighted sums are rescaled.
inline void softmax_row(const BlockTask& task, std::int64_t row) {
  const std::int32_t begin = task.row_begin[row];
  const std::int32_t end = task.row_end[row];
  if (begin >= end) return;
  float* scores = task.scores + row * task.key_block;
  if (task.key_scales != nullptr) {
    for (std::int32_t key = begin; key < end; ++key) scores[key] *= task.key_scales[key];
  }
  for (std::int32_t key = 0; key < begin; ++key) scores[key] = kNoKey;
  for (std::int64_t key = end; key < task.key_block; ++key) scores[key] = kNoKey;
  const float old_max = task.state.max[row];
  V largest = Simd::set1(old_max);
  for (std::int64_t key = 0; key < task.key_block; key += kLanes) {
    largest = Simd::max(Simd::load(scores + key), largest);
  }
  const float new_max = Simd::largest(largest);
  // Every score is -infinity: weights of exp((-inf) - (-inf)) would be NaN, so the row stays as it is.
  const V shift = Simd::set1(new_max == kNoKey ? 0.0f : new_max);
  V weights = Simd::zero();
  for (std::int64_t key = 0; key < task.key_block; key += kLanes) {
    const V weight = exp_lanes(Simd::sub(Simd::load(scores + key), shift));
    Simd::store(scores + key, weight);
    weights = Simd::add(weights, weight);
  }
  const float correction = new_max == kNoKey ? 1.0f : exp_one(old_max - new_max);
  task.state.max[row] = new_max;
  task.state.sum[row] = task.state.sum[row] * correction + Simd::sum(weights);
  if (task.value_scales != nullptr) {
    for (std::int32_t key = begin; key < end; ++key) scores[key] *= task.value_scales[key];
  }
  if (correction == 1.0f) return;
  float* sums = task.state.rows + row * task.stride;
  const V factor = Simd::set1(correction);
  for (std::int64_t d = 0; d < task.stride; d += kLanes) Simd::store(sums + d, Simd::mul(Simd::load(sums + d), factor));
}

// sums[r][d ..] += weights[r][key] * values[key][d ..] for R rows, N vectors and keys [begin, end). ahead: rows of the
// next block to bring near meanwhile, or null.
template <typename T, bool Half, int R, int N>
inline void value_tile(const BlockTask& task, const void* const* values, const void* const* ahead, std::int64_t row,
                       std::int64_t d, std::int32_t begin, std::int32_t end) {
  float* sums = task.state.rows + row * task.stride + d;
  const float* weights = task.scores + row * task.key_block;
  V kept[R][N];
  FACET_UNROLL
  for (int r = 0; r < R; ++r) {
    FACET_UNROLL
    for (int n = 0; n < N; ++n) kept[r][n] = Simd::load(sums + r * task.stride + n * kLanes);
  }
  const std::int64_t ahead_begin = d * task.element_bytes;
  const std::int64_t ahead_end = (d + N * kLanes) * task.element_bytes;
  for (std::int32_t key = begin; key < end; ++key) {
    if (ahead != nullptr) {
      for (std::int64_t at = ahead_begin; at < ahead_end; at += kLineBytes) {
        __builtin_prefetch(static_cast<const char*>(ahead[key]) + at, 0, 2);
      }
    }
    const T* value = static_cast<const T*>(values[key]) + d;
    V loaded[N];
    FACET_UNROLL
    for (int n = 0; n < N; ++n) {
      if constexpr (Half) {
        loaded[n] = Simd::load_half(value + n * kLanes);
      } else {
        loaded[n] = Simd::load(value + n * kLanes);
      }
    }
    FACET_UNROLL
    for (int r = 0; r < R; ++r) {
      const V weight = Simd::set1(weights[r * task.key_block + key]);
      FACET_UNROLL
      for (int n = 0; n < N; ++n) kept[r][n] = Simd::fma(weight, loaded[n], kept[r][n]);
    }
  }
  FACET_UNROLL
  for (int r = 0; r < R; ++r) {
    FACET_UNROLL
    for (int n = 0; n < N; ++n) Simd::store(sums + r * task.stride + n * kLanes, kept[r][n]);
  }
}

// R neighbouring rows: the keys that all of them see go through one tile, the few at either edge row by row, so that no
// masked weight is ever multiplied.
template <typename T, bool Half, int R, int N>
inline void value_rows(const BlockTask& task, const void* const* values, std::int64_t row, std::int64_t d) {
  const std::int32_t shared_begin = task.row_begin[row + R - 1];
  const std::int32_t shared_end = task.row_end[row];
  const void* const* ahead = row == 0 ? task.next_keys : nullptr;
  if (shared_begin >= shared_end) {
    for (int r = 0; r < R; ++r) {
      value_tile<T, Half, 1, N>(task, values, ahead, row + r, d, task.row_begin[row + r], task.row_end[row + r]);
    }
    return;
  }
  for (int r = 0; r + 1 < R; ++r) {
    const std::int32_t begin = task.row_begin[row + r];
    if (begin < shared_begin) value_tile<T, Half, 1, N>(task, values, nullptr, row + r, d, begin, shared_begin);
  }
  value_tile<T, Half, R, N>(task, values, ahead, row, d, shared_begin, shared_end);
  for (int r = 1; r < R; ++r) {
    const std::int32_t end = task.row_end[row + r];
    if (end > shared_end) value_tile<T, Half, 1, N>(task, values, nullptr, row + r, d, shared_end, end);
  }
}

// A slice of N vectors of all keys stays in the first-level cache while every row passes.
template <typename T, bool Half, int N>
inline void value_slice(const BlockTask& task, const void* const* values, std::int64_t d) {
  std::int64_t row = 0;
  if constexpr (Simd::kTileRows == 4 && N <= Simd::kTileVectors) {
    for (; row + 4 <= task.row_count; row += 4) value_rows<T, Half, 4, N>(task, values, row, d);
  }
  for (; row + 2 <= task.row_count; row += 2) value_rows<T, Half, 2, N>(task, values, row, d);
  for (; row < task.row_count; ++row) value_rows<T, Half, 1, N>(task, values, row, d);
}

template <typename T, bool Tail>
void value_all(const BlockTask& task, const void* const* values, std::int64_t vectors) {
  std::int64_t vector = 0;
  if (task.row_count < Simd::kTileRows) {  // few rows: wider slices keep as many chains going
    constexpr int kWide = 2 * Simd::kTileVectors;
    for (; vector + kWide <= vectors; vector += kWide) value_slice<T, false, kWide>(task, values, vector * kLanes);
  }
  for (; vector + Simd::kTileVectors <= vectors; vector += Simd::kTileVectors) {
    value_slice<T, false, Simd::kTileVectors>(task, values, vector * kLanes);
  }
  for (; vector < vectors; ++vector) value_slice<T, false, 1>(task, values, vector * kLanes);
  if constexpr (Tail) value_slice<T, true, 1>(task, values, vector * kLanes);
}

template <typename T, bool Tail>
void block_pass(const BlockTask& task, const void* const* keys, const void* const* values, std::int64_t vectors) {
  dot_all<T, Tail>(task, keys, vectors);
  for (std::int64_t row = 0; row < task.row_count; ++row) softmax_row(task, row);
  value_all<T, Tail>(task, values, vectors);
}

// Copies rows [key_begin, key_end) to fp32, padded with zeros, and points `rows` at the copies.
template <typename T>
void widen_rows(const BlockTask& task, const void* const* source, float* wide, const void** rows) {
  const std::int64_t vectors = task.head_dim / kLanes;
  for (std::int32_t key = task.key_begin; key < task.key_end; ++key) {
    const T* from = static_cast<const T*>(source[key]);
    float* to = wide + key * task.wide_stride;
    std::int64_t d = 0;
    for (; d < vectors * kLanes; d += kLanes) Simd::store(to + d, Simd::load(from + d));
    if (d < task.head_dim) {
      Simd::store(to + d, Simd::load_half(from + d));
      d += kLanes;
    }
    for (; d < task.stride; d += kLanes) Simd::store(to + d, Simd::zero());
    rows[key] = to;
  }
}

template <typename T>
void attend_element(const BlockTask& task) {
  if (task.widen) {
    const void* keys[kMaxKeyBlock];
    const void* values[kMaxKeyBlock];
    widen_rows<T>(task, task.keys, task.wide_keys, keys);
    widen_rows<T>(task, task.values, task.wide_values, values);
    block_pass<float, false>(task, keys, values, (task.head_dim + kLanes - 1) / kLanes);
    return;
  }
  const std::int64_t vectors = task.head_dim / kLanes;
  if constexpr (kLanes > 8) {
    if (task.head_dim % kLanes != 0) {
      block_pass<T, true>(task, task.keys, task.values, vectors);
      return;
    }
  }
  block_pass<T, false>(task, task.keys, task.values, vectors);
}

void attend_block(const BlockTask& task) {
  switch (task.element) {
    case KvElement::f32:
      return attend_element<float>(task);
    case KvElement::bf16:
      return attend_element<std::uint16_t>(task);
    case KvElement::i8:
      return attend_element<std::int8_t>(task);
  }
}

void fold(SoftmaxState total, SoftmaxState part, std::int64_t row_count, std::int64_t stride) {
  for (std::int64_t row = 0; row < row_count; ++row) {
    if (part.max[row] == kNoKey) continue;
    const float new_max = part.max[row] > total.max[row] ? part.max[row] : total.max[row];
    const float keep = exp_one(total.max[row] - new_max);
    const float take = exp_one(part.max[row] - new_max);
    total.max[row] = new_max;
    total.sum[row] = total.sum[row] * keep + part.sum[row] * take;
    float* to = total.rows + row * stride;
    const float* from = part.rows + row * stride;
    for (std::int64_t d = 0; d < stride; d += kLanes) {
      const V kept = Simd::mul(Simd::load(to + d), Simd::set1(keep));
      Simd::store(to + d, Simd::fma(Simd::load(from + d), Simd::set1(take), kept));
    }
  }
}

void finish(const float* row, float sum, float* output, std::int64_t head_dim) {
  for (std::int64_t d = 0; d < head_dim; ++d) output[d] = sum == 0.0f ? 0.0f : row[d] / sum;
}

void exp_array(const float* in, float* out, std::int64_t count) {
  for (std::int64_t i = 0; i < count; i += kLanes) Simd::store(out + i, exp_lanes(Simd::load(in + i)));
}

constexpr Kernels kKernels{Simd::kName, attend_block, fold, finish, exp_array};
