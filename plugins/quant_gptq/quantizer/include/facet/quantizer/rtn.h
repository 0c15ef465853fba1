// Round-to-nearest quantization of one matrix to 4- or 8-bit codes with a scale for each group of inputs.
#pragma once

#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

namespace facet::quantizer {

// Input that cannot be quantized; the text names the tensor.
class QuantizeError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Dense weights [rows, columns], row-major without gaps; y = x W^T, so a row is one output and columns are inputs.
struct Matrix {
  enum class Type { f32, bf16 };

  std::string name;  // for errors
  Type type = Type::f32;
  const void* values = nullptr;  // const float* or const std::uint16_t*; borrowed
  std::int64_t rows = 0;
  std::int64_t columns = 0;
};

// Where the largest magnitude of a symmetric group lands. Codes are -8..7 (-128..127 for 8 bits) either way.
//   full: scale = max|w| / 7 (127): nothing is cut. The default, and what published round-to-nearest figures mean.
//   half: scale = max|w| / 7.5 (127.5): finer steps, a positive maximum is cut by half a step (the rule of
//   compressed-tensors).
// On the 22m checkpoint at g128 the mean NLL is 2.3043 with full and 2.2954 with half (bf16: 2.2294).
enum class SymmetricRange { half, full };

struct RtnOptions {
  int bits = 4;  // 4 or 8
  bool symmetric = true;
  std::int64_t group_size = 128;  // inputs a scale; -1: the whole row
  SymmetricRange range = SymmetricRange::full;
  // Chooses each group's scale for the least squared error among shrunk and slightly widened ranges, then refits it to
  // the codes.
  bool search_scales = false;
};

// Codes in the canonical form of abi::WeightView: value = (code - zero) * scale, code 0..15 or 0..255.
struct Quantized {
  // [rows, ceil(columns * bits / 32)]: code of column k in bits bits*(k % per_word) of word k / per_word; codes past
  // the last column mean zero.
  std::vector<std::uint32_t> words;
  std::vector<float>
      scales;  // [rows, groups]; exact in bf16; normal and > 0, or exactly 0 with every code at the zero code
  std::vector<std::uint8_t> zeros;  // [rows, groups]; empty when symmetric (the zero code is 8 or 128)
  std::int64_t groups = 0;          // ceil(columns / group_size); the last may be short
  double squared_error = 0;         // sum of (w - value)^2
};

// Calls body(begin, end) for pieces that cover [0, count), in any order and from any thread, and returns when all are
// done.
using ParallelFor =
    std::function<void(std::int64_t count, const std::function<void(std::int64_t begin, std::int64_t end)>& body)>;

// Quantizes a matrix. Scales are rounded to bf16 before codes are chosen, so codes are nearest to what a reader will
// see: code = clamp(round_half_to_even(w / scale) + zero). An asymmetric range always contains 0. Groups whose scale
// would be below the smallest normal bf16 (about 1.2e-38) become zeros. Codes do not depend on how `parallel` splits
// the rows. An empty `parallel` runs in the calling thread. Throws QuantizeError naming the tensor for NaN or infinity
// (with its position), an empty matrix, and bits or group size out of range. Source of the rules: compressed-tensors,
// calculate_qparams and quantize.
Quantized quantize_rtn(const Matrix& matrix, const RtnOptions& options, const ParallelFor& parallel = {});

// Value of one element of a result, for reports and tests. options must be those that made it.
float dequantize(const Quantized& quantized, const RtnOptions& options, std::int64_t columns, std::int64_t row,
                 std::int64_t column);

}  // namespace facet::quantizer
