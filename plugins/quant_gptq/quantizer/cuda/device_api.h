// The line between the quantizer, which links no CUDA, and libfacet_quantizer_cuda.so, which does: loaded at run time,
// plain data and outcomes only, exceptions never.
#pragma once

#include <cstdint>

namespace facet::quantizer::cuda {

// Raised with every change of this header.
inline constexpr std::uint32_t kDeviceApiVersion = 2;
inline constexpr const char* kDeviceApiSymbol = "facet_quantizer_cuda_v2";

enum class Outcome : std::int32_t { ok, not_positive_definite, bad_value, failed };

struct Problem {
  char text[512];
  std::int64_t row, column;  // of a bad_value
};

struct DeviceFacts {
  char name[128];
  std::uint64_t total_bytes, free_bytes;
};

// Order and damping of a factorisation, as gptq_input.h has them; arrays have one element a column.
struct FactorRequest {
  const std::int64_t* order;   // position -> column
  const double* diagonal;      // of H by column, with a place holder where it is 0
  const float* importance;     // by column
  double damping;              // added to the diagonal
  std::int32_t with_feedback;  // false: nothing is factored
  std::int32_t with_correction;
};

struct RowReport {
  double error, nearest_error, output, predicted_loss;
  std::int64_t bad_column;  // first weight that is not finite, or -1
  std::int32_t kept, reserved;
};

enum class Scales : std::int32_t { largest, search, hessian };

// One matrix [rows, columns] to quantize, and where the results go: host memory, as Quantized has it.
struct QuantizeRequest {
  const void* weights;  // float, or bf16
  std::int32_t is_bf16;
  std::int32_t bits;
  std::int64_t rows;
  std::int64_t group_size;  // 1 to kMostGroup
  std::int32_t symmetric;
  std::int32_t half_range;
  Scales scales;
  std::int32_t natural_order;
  std::int32_t feedback;
  std::int32_t refinements;
  float correction;
  std::uint32_t* words;
  float* scale_values;
  std::uint8_t* zeros;  // null when symmetric
  RowReport* reports;   // [rows]
};

// Rows in device memory, as facet::quantizer::DeviceRows.
struct DeviceBatch {
  const void* rows;
  const void* originals;
  std::int64_t count;
  void* stream;
};

// A group must divide a block of columns, so that no group is cut.
inline constexpr std::int64_t kMostGroup = 128;

// Elements of one working array, and what all of them take at most: four arrays of floats, codes twice, words, and what
// each row and group needs.
inline constexpr std::int64_t kChunkElements = std::int64_t{64} << 20;
inline constexpr std::uint64_t kChunkBytes = 20 * static_cast<std::uint64_t>(kChunkElements);

// Inputs of one kind of rows, as Calibration has them.
class DeviceInput {
 public:
  // Pinned host memory of `count` rows; with `original` of the original model's.
  virtual Outcome rows(std::int64_t count, std::int32_t original, float** memory, Problem* problem) noexcept = 0;
  virtual Outcome add(Problem* problem) noexcept = 0;
  virtual Outcome add_device(const DeviceBatch& batch, Problem* problem) noexcept = 0;
  // diagonal[columns] of H.
  virtual Outcome finish(double* diagonal, Problem* problem) noexcept = 0;
  virtual Outcome factor(const FactorRequest& request, Problem* problem) noexcept = 0;
  virtual Outcome quantize(const QuantizeRequest& request, Problem* problem) noexcept = 0;
  virtual void destroy() noexcept = 0;

 protected:
  ~DeviceInput() = default;
};

// One device and its streams. Not for use by several threads at once.
class Device {
 public:
  virtual Outcome facts(DeviceFacts* facts, Problem* problem) noexcept = 0;
  virtual Outcome begin(std::int64_t columns, std::int32_t with_originals, DeviceInput** input,
                        Problem* problem) noexcept = 0;
  // Time inside matrix products and factorisations so far.
  virtual double blas_seconds() noexcept = 0;
  virtual void destroy() noexcept = 0;

 protected:
  ~Device() = default;
};

using MakeDevice = Outcome (*)(std::uint32_t version, std::int32_t ordinal, Device** device, Problem* problem);

}  // namespace facet::quantizer::cuda
