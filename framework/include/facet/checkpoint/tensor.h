// A tensor of a checkpoint: where its bytes lie in a mapped file and what they mean.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace facet {

// Element types of the safetensors format, under the names its headers use.
enum class TensorType { boolean, u8, i8, u16, i16, f16, bf16, f8_e4m3, f8_e5m2, u32, i32, f32, u64, i64, f64 };

// Name as in a safetensors header, e.g. "BF16".
const char* to_string(TensorType type) noexcept;
// The type of that name, nothing when unknown.
std::optional<TensorType> tensor_type_from(std::string_view name) noexcept;
// Bytes of one element, 1 to 8.
std::int64_t element_bytes(TensorType type) noexcept;

// data points into a mapped file and is borrowed: it lives as long as the SafetensorsFile or Checkpoint it came from
// (or anyone who holds Checkpoint::keep_alive()). Its alignment is whatever the file gives; bytes = product(shape) *
// element_bytes(type).
struct Tensor {
  std::string name;
  TensorType type = TensorType::f32;
  std::vector<std::int64_t> shape;  // empty: a scalar
  const std::byte* data = nullptr;
  std::uint64_t bytes = 0;
  std::filesystem::path file;
};

// "[512, 384]"; "[]" for a scalar.
std::string shape_text(const std::vector<std::int64_t>& shape);
// "model.safetensors: tensor 'x' (BF16 [4, 8])", the form every error about a tensor starts with.
std::string describe(const Tensor& tensor);
// True when type, shape and bytes are equal: tells an identical copy of a tied matrix from a different one.
bool same_contents(const Tensor& a, const Tensor& b);

}  // namespace facet
