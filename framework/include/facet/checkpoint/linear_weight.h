// One linear layer's weight in the canonical form that linear plugins pack (abi::WeightView), from bf16,
// compressed-tensors or GPTQ.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "facet/abi/weight.h"
#include "facet/checkpoint/checkpoint.h"
#include "facet/checkpoint/quantization_config.h"

namespace facet {

// Codes and bf16 values stay in the mapped file where its alignment allows; scales (as floats) and zero codes are
// owned. Movable and copyable; a view lives as long as the object (moves keep it valid) and the mapping is kept alive
// by it.
class LinearWeight {
 public:
  // From parts that are already in canonical form, e.g. a matrix quantized in memory. `values` holds out * row_bytes
  // bytes and is copied into owned storage. Throws Error(checkpoint) when sizes do not fit the rules of
  // abi::WeightView.
  static LinearWeight from_parts(abi::WeightFormat format, std::int64_t out_features, std::int64_t in_features,
                                 std::int64_t group_size, const void* values, std::int64_t row_bytes,
                                 std::vector<float> scales, std::vector<std::uint8_t> zeros);

  abi::WeightView view() const noexcept { return view_; }
  std::int64_t out_features() const noexcept { return view_.out_features; }
  std::int64_t in_features() const noexcept { return view_.in_features; }
  // Bytes of values, scales and zeros as the view shows them.
  std::uint64_t bytes() const noexcept;
  // Bytes of it that this object holds itself: scales and zero codes, and values that are not in the mapped file.
  std::uint64_t owned_bytes() const noexcept;
  // True when values lie in the mapped file.
  bool mapped() const noexcept { return mapped_; }

 private:
  friend class LinearWeightBuilder;
  LinearWeight() = default;

  abi::WeightView view_{};
  bool mapped_ = false;
  std::shared_ptr<const void> values_owner_;
  std::shared_ptr<const std::vector<float>> scales_;
  std::shared_ptr<const std::vector<std::uint8_t>> zeros_;
};

// How the checkpoint is quantized: parse_quantization_config of its config.json, or quantize_config.json where that
// says nothing. For GPTQ also finds every packed module and reads its group indices. Throws Error(checkpoint) as the
// parsers do, and naming file, tensor, both values and the cure for: group indices that are missing where desc_act is
// true, scattered where it is false, outside the groups, or more of one group than group_size; modules that `dynamic`
// excludes; an embedding packed along the vocabulary. Modules of vision and audio parts are passed over. Warns when
// activation order left groups so scattered that every few inputs need scales of their own.
QuantizationConfig read_quantization(const Checkpoint& checkpoint);

// Loads the weight [out, in] of `module` (a full name without ".weight").
//   dense:     module.weight, BF16. F32 is taken only when every value is exact in bf16, otherwise Error; F16 is
//   rounded
//              to bf16, with a warning that counts the values (relative error at most 2^-9).
//   quantized: module.weight_packed  I32 [out, ceil(in * bits / 32)], element i in bits bits*(i % per_word) of word i /
//   per_word,
//                                    stored code = q + 8 (4 bits) or q + 128 (8 bits)
//              module.weight_scale   BF16, F16 or F32 [out, groups], groups = ceil(in / group_size), 1 for channel
//              module.weight_zero_point  I32 [ceil(out * bits / 32), groups], packed along out, only when asymmetric
//              module.weight_shape   I64 or I32 [2] = [out, in]
// Throws Error(checkpoint) naming file, tensor and both values for anything missing, of another type or shape, for
// weight_shape unlike [out, in], scales that are not finite, zero points of a symmetric module (GPTQ: other than 8),
// run-time group indices of compressed-tensors, and when config and files disagree about whether the module is
// quantized. `config` comes from read_quantization() when it is GPTQ.
LinearWeight load_linear(const Checkpoint& checkpoint, const QuantizationConfig& config, const std::string& module,
                         std::int64_t out_features, std::int64_t in_features);

// Writes row `row` of a weight as floats: in_features values at `destination`. row in [0, out_features).
void dequantize_row(const abi::WeightView& weight, std::int64_t row, float* destination) noexcept;

}  // namespace facet
