// Rows of weights on their way to codes, one warp a row or a group.
#include "scale.cuh"

namespace facet::quantizer::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / kLanes;

__device__ std::int64_t row_at(std::int64_t row, int columns) {
  return row * columns;
}

__global__ void load_weights_kernel(const void* values, int is_bf16, int columns, float* out, std::int32_t* bad) {
  const std::int64_t row = blockIdx.x, begin = row_at(row, columns);
  __shared__ int first;
  if (threadIdx.x == 0) first = columns;
  __syncthreads();
  for (int column = static_cast<int>(threadIdx.x); column < columns; column += static_cast<int>(blockDim.x)) {
    const float value =
        is_bf16 != 0
            ? __uint_as_float(static_cast<unsigned>(static_cast<const unsigned short*>(values)[begin + column]) << 16)
            : static_cast<const float*>(values)[begin + column];
    out[begin + column] = value;
    if (!isfinite(value)) atomicMin(&first, column);
  }
  __syncthreads();
  if (threadIdx.x == 0) bad[row] = first == columns ? -1 : first;
}

__global__ void round_rows_kernel(const float* weights, std::int64_t rows, Format format, DeviceCodes out) {
  const std::int64_t item = static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / kLanes;
  const int lane = static_cast<int>(threadIdx.x % kLanes);
  if (item >= rows * format.groups) return;
  const std::int64_t row = item / format.groups;
  const int index = static_cast<int>(item % format.groups);
  const Group group = load_group(weights + row_at(row, format.columns), index, format, lane);
  const Chosen chosen = choose_scale(group, format);
  if (lane == 0) {
    out.scales[item] = chosen.scale;
    out.zeros[item] = chosen.zero;
  }
  const int begin = index * format.group_size, end = min(begin + format.group_size, format.columns);
  const auto largest = static_cast<float>(largest_code(format));
#pragma unroll
  for (int t = 0; t < kSlots; ++t) {
    const int column = begin + t * kLanes + lane;
    if (column >= end) continue;
    out.codes[row_at(row, format.columns) + column] =
        static_cast<std::uint8_t>(nearest_code(group.values[t], chosen.scale, chosen.zero, largest));
  }
}

__device__ float value_of(const DeviceCodes& codes, std::int64_t row, int column, const Format& format) {
  const std::int64_t cell = row * format.groups + column / format.group_size;
  return (static_cast<float>(codes.codes[row_at(row, format.columns) + column]) - codes.zeros[cell]) *
         codes.scales[cell];
}

__global__ void difference_kernel(const float* weights, Format format, DeviceCodes codes, float* out) {
  const std::int64_t row = blockIdx.x, begin = row_at(row, format.columns);
  for (int column = static_cast<int>(threadIdx.x); column < format.columns; column += static_cast<int>(blockDim.x)) {
    const float value = codes.codes == nullptr ? 0.0f : value_of(codes, row, column, format);
    out[begin + column] = weights[begin + column] - value;
  }
}

__global__ void row_errors_kernel(const float* a, const float* b, int columns, double* errors) {
  const std::int64_t row = blockIdx.x, begin = row_at(row, columns);
  double sum = 0;
  for (int column = static_cast<int>(threadIdx.x); column < columns; column += static_cast<int>(blockDim.x))
    sum += static_cast<double>(a[begin + column]) * b[begin + column];
  __shared__ double parts[kWarps];
  sum = warp_sum(sum);
  if (threadIdx.x % kLanes == 0) parts[threadIdx.x / kLanes] = sum;
  __syncthreads();
  if (threadIdx.x != 0) return;
  double total = 0;
  for (const double part : parts) total += part;
  errors[row] = 0.5 * fmax(total, 0.0);
}

// Lane l of a warp holds positions begin + l + 32 t of its row.
__global__ void feed_back_kernel(FeedBack job, std::int64_t rows) {
  extern __shared__ float tile[];  // [width][width] of U, then a row of values for each warp
  const Format& format = job.format;
  const int width = job.end - job.begin, n = format.columns;
  const int lane = static_cast<int>(threadIdx.x % kLanes), warp = static_cast<int>(threadIdx.x / kLanes);
  for (int i = static_cast<int>(threadIdx.x); i < width * width; i += kThreads)
    tile[i] = job.upper[static_cast<std::int64_t>(job.begin + i / width) * n + job.begin + i % width];
  __syncthreads();
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * kWarps + warp;
  if (row >= rows) return;
  float* staged = tile + width * width + warp * kSlots * kLanes;
  float* work = job.work + row_at(row, n) + job.begin;
  const auto largest = static_cast<float>(largest_code(format));
  float w[kSlots], error[kSlots] = {}, scale[kSlots] = {}, zero[kSlots] = {};
  int column[kSlots] = {};
#pragma unroll
  for (int t = 0; t < kSlots; ++t) {
    const int p = t * kLanes + lane;
    w[t] = p < width ? work[p] : 0.0f;
    if (p >= width) continue;
    column[t] = job.order[job.begin + p];
    const std::int64_t cell = row * format.groups + column[t] / format.group_size;
    scale[t] = job.codes.scales[cell];
    zero[t] = job.codes.zeros[cell];
  }
  double loss = 0;
#pragma unroll
  for (int t = 0; t < kSlots; ++t) {
    for (int owner = 0; owner < kLanes; ++owner) {
      const int p = t * kLanes + owner;
      if (p >= width) break;
      if (job.natural != 0 && (job.begin + p) % format.group_size == 0) {
        const int first = job.begin + p, count = min(format.group_size, n - first);
#pragma unroll
        for (int s = 0; s < kSlots; ++s) staged[s * kLanes + lane] = w[s];
        __syncwarp();
        Group group{};
        group.slots = (count + kLanes - 1) / kLanes;
#pragma unroll
        for (int s = 0; s < kSlots; ++s) {
          const int i = s * kLanes + lane;
          if (i >= count) continue;
          group.values[s] = staged[p + i];
          group.weights[s] = format.importance != nullptr ? format.importance[first + i] : 1.0f;
        }
        const Chosen chosen = choose_scale(group, format);
        const std::int64_t cell = row * format.groups + first / format.group_size;
        if (lane == 0) {
          job.codes.scales[cell] = chosen.scale;
          job.codes.zeros[cell] = chosen.zero;
        }
#pragma unroll
        for (int s = 0; s < kSlots; ++s) {
          const int i = s * kLanes + lane - p;
          if (i < 0 || i >= count) continue;
          scale[s] = chosen.scale;
          zero[s] = chosen.zero;
        }
        __syncwarp();
      }
      const float here = __shfl_sync(kAll, w[t], owner), step = __shfl_sync(kAll, scale[t], owner);
      const float middle = __shfl_sync(kAll, zero[t], owner);
      const float code = nearest_code(here, step, middle, largest);
      const float miss = __fdiv_rn(here - (code - middle) * step, tile[p * width + p]);
      loss += 0.5 * static_cast<double>(miss) * static_cast<double>(miss);
      if (lane == owner) {
        error[t] = miss;
        job.codes.codes[row_at(row, n) + column[t]] = static_cast<std::uint8_t>(code);
      }
      // U is 0 before the diagonal, and position p itself is not looked at again.
#pragma unroll
      for (int s = 0; s < kSlots; ++s) {
        const int later = s * kLanes + lane;
        if (s >= t && later < width) w[s] -= miss * tile[p * width + later];
      }
    }
  }
#pragma unroll
  for (int t = 0; t < kSlots; ++t) job.errors[row * kSlots * kLanes + t * kLanes + lane] = error[t];
  if (lane == 0) job.losses[row] += loss;
}

// One group of one row: the gradient of the layer's error, codes and scale, spread over a warp.
struct Descent {
  float gradient[kSlots], code[kSlots], change[kSlots];
  float scale, zero;
};

__device__ void move_codes(Descent& at, const float* tile, int width, int lane, float largest) {
#pragma unroll
  for (int t = 0; t < kSlots; ++t) {
    for (int owner = 0; owner < kLanes; ++owner) {
      const int j = t * kLanes + owner;
      if (j >= width) break;
      const float curvature = tile[j * width + j];
      if (!(curvature > 0) || at.scale == 0.0f) continue;
      const float code = __shfl_sync(kAll, at.code[t], owner), slope = __shfl_sync(kAll, at.gradient[t], owner);
      const float best =
          nearest_code((code - at.zero) * at.scale + __fdiv_rn(slope, curvature), at.scale, at.zero, largest);
      if (best == code) continue;
      const float step = (best - code) * at.scale;
#pragma unroll
      for (int s = 0; s < kSlots; ++s) {
        const int k = s * kLanes + lane;
        if (k < width) at.gradient[s] -= step * tile[j * width + k];
      }
      if (lane == owner) {
        at.code[t] = best;
        at.change[t] += step;
      }
    }
  }
}

__device__ void move_scale(Descent& at, const float* tile, int width, int lane) {
  float product[kSlots] = {};
#pragma unroll
  for (int t = 0; t < kSlots; ++t) {
    for (int owner = 0; owner < kLanes; ++owner) {
      const int j = t * kLanes + owner;
      if (j >= width) break;
      const float step = __shfl_sync(kAll, at.code[t], owner) - at.zero;
#pragma unroll
      for (int s = 0; s < kSlots; ++s) {
        const int k = s * kLanes + lane;
        if (k < width) product[s] += step * tile[j * width + k];
      }
    }
  }
  double curvature = 0, slope = 0;
#pragma unroll
  for (int t = 0; t < kSlots; ++t) {
    if (t * kLanes + lane >= width) continue;
    const double step = at.code[t] - at.zero;
    curvature += step * product[t];
    slope += step * at.gradient[t];
  }
  curvature = warp_sum(curvature);
  slope = warp_sum(slope);
  if (!(curvature > 0) || at.scale == 0.0f) return;
  const float best = round_scale(at.scale + slope / curvature);
  const double moved = static_cast<double>(best) - at.scale;
  if (!(best >= at.scale / 2 && best <= at.scale * 2) || !(moved * moved * curvature - 2 * moved * slope < 0)) return;
  at.scale = best;
#pragma unroll
  for (int t = 0; t < kSlots; ++t) {
    if (t * kLanes + lane >= width) continue;
    at.gradient[t] -= static_cast<float>(moved) * product[t];
    at.change[t] += static_cast<float>(moved) * (at.code[t] - at.zero);
  }
}

__global__ void refine_kernel(Refine job, std::int64_t rows) {
  extern __shared__ float tile[];  // [width][width] of H
  const Format& format = job.format;
  const int width = job.end - job.begin, n = format.columns;
  const int lane = static_cast<int>(threadIdx.x % kLanes), warp = static_cast<int>(threadIdx.x / kLanes);
  for (int i = static_cast<int>(threadIdx.x); i < width * width; i += kThreads)
    tile[i] = job.hessian[static_cast<std::int64_t>(job.begin + i / width) * n + job.begin + i % width];
  __syncthreads();
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * kWarps + warp;
  if (row >= rows) return;
  const std::int64_t first = row_at(row, n) + job.begin, cell = row * format.groups + job.begin / format.group_size;
  Descent at{};
  at.scale = job.codes.scales[cell];
  at.zero = job.codes.zeros[cell];
#pragma unroll
  for (int t = 0; t < kSlots; ++t) {
    const int k = t * kLanes + lane;
    if (k >= width) continue;
    at.gradient[t] = job.gradient[first + k];
    at.code[t] = static_cast<float>(job.codes.codes[first + k]);
  }
  move_codes(at, tile, width, lane, static_cast<float>(largest_code(format)));
  move_scale(at, tile, width, lane);
  if (lane == 0) job.codes.scales[cell] = at.scale;
#pragma unroll
  for (int t = 0; t < kSlots; ++t) {
    const int k = t * kLanes + lane;
    if (k >= width) continue;
    job.gradient[first + k] = at.gradient[t];
    job.codes.codes[first + k] = static_cast<std::uint8_t>(at.code[t]);
    job.change[row * width + k] = at.change[t];
  }
}

__global__ void finish_kernel(Finish job) {
  const std::int64_t row = blockIdx.x;
  const Format& format = job.format;
  const bool keep = job.nearest_errors[row] < job.errors[row];
  const DeviceCodes& from = keep ? job.nearest : job.best;
  for (int group = static_cast<int>(threadIdx.x); group < format.groups; group += static_cast<int>(blockDim.x)) {
    const std::int64_t cell = row * format.groups + group;
    job.best.scales[cell] = from.scales[cell];
    if (job.zeros != nullptr) job.zeros[cell] = static_cast<std::uint8_t>(from.zeros[cell]);
  }
  const int per_word = 32 / format.bits;
  const auto padding = static_cast<std::uint32_t>(from.zeros[row * format.groups + format.groups - 1]);
  for (int word = static_cast<int>(threadIdx.x); word < job.words_per_row; word += static_cast<int>(blockDim.x)) {
    std::uint32_t bits = 0;
    for (int i = 0; i < per_word; ++i) {
      const int column = word * per_word + i;
      const std::uint32_t code = column < format.columns ? from.codes[row_at(row, format.columns) + column] : padding;
      bits |= code << (format.bits * i);
    }
    job.words[row * job.words_per_row + word] = bits;
  }
}

unsigned blocks_for(std::int64_t items) {
  return static_cast<unsigned>((items + kWarps - 1) / kWarps);
}

// Shared memory beyond the usual limit has to be asked for.
template <typename Kernel>
cudaError_t allow(Kernel kernel, int bytes) {
  return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
}

}  // namespace

cudaError_t load_weights(const void* values, bool is_bf16, std::int64_t rows, std::int32_t columns, float* out,
                         std::int32_t* bad, cudaStream_t stream) {
  load_weights_kernel<<<static_cast<unsigned>(rows), kThreads, 0, stream>>>(values, is_bf16 ? 1 : 0, columns, out, bad);
  return cudaGetLastError();
}

cudaError_t round_rows(const float* weights, std::int64_t rows, const Format& format, const DeviceCodes& out,
                       cudaStream_t stream) {
  round_rows_kernel<<<blocks_for(rows * format.groups), kThreads, 0, stream>>>(weights, rows, format, out);
  return cudaGetLastError();
}

cudaError_t difference(const float* weights, std::int64_t rows, const Format& format, const DeviceCodes& codes,
                       float* out, cudaStream_t stream) {
  difference_kernel<<<static_cast<unsigned>(rows), kThreads, 0, stream>>>(weights, format, codes, out);
  return cudaGetLastError();
}

cudaError_t row_errors(const float* a, const float* b, std::int64_t rows, std::int32_t columns, double* errors,
                       cudaStream_t stream) {
  row_errors_kernel<<<static_cast<unsigned>(rows), kThreads, 0, stream>>>(a, b, columns, errors);
  return cudaGetLastError();
}

cudaError_t feed_back(const FeedBack& job, std::int64_t rows, cudaStream_t stream) {
  const int width = job.end - job.begin;
  const auto bytes = static_cast<int>(sizeof(float)) * (width * width + kWarps * kSlots * kLanes);
  if (const cudaError_t error = allow(feed_back_kernel, bytes); error != cudaSuccess) return error;
  feed_back_kernel<<<blocks_for(rows), kThreads, static_cast<std::size_t>(bytes), stream>>>(job, rows);
  return cudaGetLastError();
}

cudaError_t refine(const Refine& job, std::int64_t rows, cudaStream_t stream) {
  const int width = job.end - job.begin;
  const auto bytes = static_cast<int>(sizeof(float)) * width * width;
  if (const cudaError_t error = allow(refine_kernel, bytes); error != cudaSuccess) return error;
  refine_kernel<<<blocks_for(rows), kThreads, static_cast<std::size_t>(bytes), stream>>>(job, rows);
  return cudaGetLastError();
}

cudaError_t finish(const Finish& job, std::int64_t rows, cudaStream_t stream) {
  finish_kernel<<<static_cast<unsigned>(rows), kThreads, 0, stream>>>(job);
  return cudaGetLastError();
}

}  // namespace facet::quantizer::cuda
