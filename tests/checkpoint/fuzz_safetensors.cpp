// Fuzz entry: any bytes are either refused with facet::Error or give tensors that lie inside them.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "facet/base/error.h"
#include "facet/checkpoint/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  // A block of exactly this size lets a sanitizer see a read of one byte too many.
  const std::unique_ptr<std::byte[]> copy(new std::byte[size]);
  if (size > 0) std::memcpy(copy.get(), data, size);
  try {
    const facet::SafetensorsLayout layout = facet::parse_safetensors(copy.get(), size, "fuzz");
    const std::byte* end = copy.get() + layout.data_start;
    for (const facet::Tensor& tensor : layout.tensors) {
      if (tensor.bytes == 0) continue;
      // In order, without overlap, inside the file.
      if (tensor.data < end || tensor.bytes > size || tensor.data + tensor.bytes > copy.get() + size) std::abort();
      end = tensor.data + tensor.bytes;
    }
  } catch (const facet::Error& error) {
    if (error.message().find("fuzz") == std::string::npos) std::abort();
  }
  return 0;
}
