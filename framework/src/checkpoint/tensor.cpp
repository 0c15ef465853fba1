#include "facet/checkpoint/tensor.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <cstring>

namespace facet {
namespace {

struct TypeRow {
  TensorType type;
  const char* name;
  std::int64_t bytes;
};

constexpr std::array<TypeRow, 15> kTypes = {{{TensorType::boolean, "BOOL", 1},
                                             {TensorType::u8, "U8", 1},
                                             {TensorType::i8, "I8", 1},
                                             {TensorType::u16, "U16", 2},
                                             {TensorType::i16, "I16", 2},
                                             {TensorType::f16, "F16", 2},
                                             {TensorType::bf16, "BF16", 2},
                                             {TensorType::f8_e4m3, "F8_E4M3", 1},
                                             {TensorType::f8_e5m2, "F8_E5M2", 1},
                                             {TensorType::u32, "U32", 4},
                                             {TensorType::i32, "I32", 4},
                                             {TensorType::f32, "F32", 4},
                                             {TensorType::u64, "U64", 8},
                                             {TensorType::i64, "I64", 8},
                                             {TensorType::f64, "F64", 8}}};

}  // namespace

const char* to_string(TensorType type) noexcept {
  for (const TypeRow& row : kTypes) {
    if (row.type == type) return row.name;
  }
  return "unknown";
}

std::optional<TensorType> tensor_type_from(std::string_view name) noexcept {
  for (const TypeRow& row : kTypes) {
    if (name == row.name) return row.type;
  }
  return std::nullopt;
}

std::int64_t element_bytes(TensorType type) noexcept {
  for (const TypeRow& row : kTypes) {
    if (row.type == type) return row.bytes;
  }
  return 1;
}

std::string shape_text(const std::vector<std::int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

std::string describe(const Tensor& tensor) {
  return fmt::format("{}: tensor '{}' ({} {})", tensor.file.string(), tensor.name, to_string(tensor.type),
                     shape_text(tensor.shape));
}

bool same_contents(const Tensor& a, const Tensor& b) {
  return a.type == b.type && a.shape == b.shape && a.bytes == b.bytes &&
         (a.bytes == 0 || std::memcmp(a.data, b.data, a.bytes) == 0);
}

}  // namespace facet
