// Text building for plugins without a library: concat("K=", 192, " is not a multiple of ", 128).
#pragma once

#include <cstdio>
#include <string>
#include <string_view>
#include <type_traits>

#include "facet/abi/types.h"
#include "facet/abi/weight.h"

namespace facet::sdk {

namespace detail {

template <typename T>
void append(std::string& out, const T& value) {
  if constexpr (std::is_same_v<T, bool>) {
    out += value ? "true" : "false";
  } else if constexpr (std::is_same_v<T, char>) {
    out += value;
  } else if constexpr (std::is_integral_v<T>) {
    out += std::to_string(value);
  } else if constexpr (std::is_floating_point_v<T>) {
    char digits[32];
    std::snprintf(digits, sizeof digits, "%g", static_cast<double>(value));
    out += digits;
  } else {
    out += std::string_view(value);
  }
}

}  // namespace detail

template <typename... Args>
std::string concat(const Args&... args) {
  std::string out;
  (detail::append(out, args), ...);
  return out;
}

inline void write_line(abi::TextSink sink, std::string_view text) {
  sink.write(sink.context, text.data(), text.size());
}

inline const char* to_string(abi::DType type) {
  switch (type) {
    case abi::DType::none:
      return "none";
    case abi::DType::f32:
      return "f32";
    case abi::DType::bf16:
      return "bf16";
    case abi::DType::f16:
      return "f16";
    case abi::DType::i8:
      return "i8";
    case abi::DType::i32:
      return "i32";
    case abi::DType::u8:
      return "u8";
  }
  return "unknown";
}

inline const char* to_string(abi::WeightFormat format) {
  switch (format) {
    case abi::WeightFormat::none:
      return "none";
    case abi::WeightFormat::bf16:
      return "bf16";
    case abi::WeightFormat::int8:
      return "int8";
    case abi::WeightFormat::int4:
      return "int4";
  }
  return "unknown";
}

inline const char* to_string(abi::Device device) {
  switch (device) {
    case abi::Device::none:
      return "none";
    case abi::Device::cpu:
      return "cpu";
    case abi::Device::cuda:
      return "cuda";
  }
  return "unknown";
}

inline const char* to_string(abi::Status status) {
  switch (status) {
    case abi::Status::ok:
      return "ok";
    case abi::Status::invalid_argument:
      return "invalid argument";
    case abi::Status::unsupported:
      return "unsupported";
    case abi::Status::out_of_memory:
      return "out of memory";
    case abi::Status::unavailable:
      return "unavailable";
    case abi::Status::failed:
      return "failed";
  }
  return "unknown";
}

}  // namespace facet::sdk
