// Plain data that crosses the line between host and plugin. No STL type, no exception, no ownership crosses it.
// Every struct that may grow starts with `size`, the sizeof its writer was compiled with.
#pragma once

#include <cstdint>

namespace facet::abi {

// Version of the whole contract. Host and plugin must carry the same number and the same layout hash (abi/layout.h).
inline constexpr std::uint32_t kContractVersion = 0;

enum class DType : std::uint32_t { none = 0, f32 = 1, bf16 = 2, f16 = 3, i8 = 4, i32 = 5, u8 = 6 };

// Bit masks: a plugin names every device it can serve, a problem names exactly one.
enum class Device : std::uint32_t { none = 0, cpu = 1, cuda = 2 };

// Outcome of a plugin call. `text` of anything but ok is written to the TextSink that the call received.
enum class Status : std::uint32_t {
  ok = 0,
  invalid_argument = 1,  // the host broke the contract
  unsupported = 2,       // the problem is outside what supports() accepted
  out_of_memory = 3,     // no room now; the caller may free something and try again
  unavailable = 4,       // this machine lacks what the plugin needs
  failed = 5,            // anything else
};

// Text that does not end in NUL and is not owned. data may be null when size is 0.
struct TextView {
  const char* data;
  std::uint64_t size;
};

// Where a plugin writes reasons and error texts: each write() is one complete line without a newline.
// write is never null; it copies, so the text may die right after the call.
struct TextSink {
  void* context;
  void (*write)(void* context, const char* text, std::uint64_t size);
};

// An execution stream as plain data: CPU plugins ignore it, CUDA plugins cast handle to cudaStream_t.
struct Stream {
  Device device;
  std::int32_t index;  // device ordinal
  void* handle;        // not owned; null on the CPU and for the default stream
};

// Memory of one device. data is not owned by whoever receives the struct.
struct Memory {
  void* data;
  std::uint64_t bytes;
};

}  // namespace facet::abi
