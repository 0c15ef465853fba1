// parse_safetensors: from the bytes of a file to checked tensors.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "facet/base/error.h"
#include "facet/checkpoint/safetensors.h"
#include "header_sax.h"

namespace facet {
namespace {

using checkpoint_detail::HeaderSax;
using checkpoint_detail::RawEntry;
using checkpoint_detail::shown;

constexpr std::uint64_t kLargestBytes = static_cast<std::uint64_t>(INT64_MAX);

std::uint64_t read_header_length(const std::byte* data, std::uint64_t size, const std::string& file) {
  if (size < 8) {
    throw_error(ErrorKind::checkpoint,
                "{}: a safetensors file needs at least 8 bytes for its header length, the file has {}; copy or "
                "download it again",
                file, size);
  }
  std::uint64_t length = 0;
  for (int i = 7; i >= 0; --i) length = (length << 8) | std::to_integer<std::uint64_t>(data[i]);
  if (length > kMaxSafetensorsHeaderBytes) {
    throw_error(ErrorKind::checkpoint,
                "{}: header length {} is above the limit of {} bytes; is this a safetensors file?", file, length,
                kMaxSafetensorsHeaderBytes);
  }
  if (length == 0) throw_error(ErrorKind::checkpoint, "{}: safetensors header is empty", file);
  if (length > size - 8) {
    throw_error(ErrorKind::checkpoint,
                "{}: the header ends at byte {}, the file has {} bytes; it is truncated, copy or download it again",
                file, length + 8, size);
  }
  return length;
}

// Bytes of the shape, or an error where the product leaves 63 bits.
std::uint64_t shape_bytes(const RawEntry& entry, TensorType type, std::vector<std::int64_t>& shape,
                          const std::string& file) {
  std::uint64_t elements = 1;
  bool overflow = false;
  for (const std::uint64_t extent : entry.shape) {
    if (extent > kLargestBytes) overflow = true;
    shape.push_back(static_cast<std::int64_t>(std::min(extent, kLargestBytes)));
    if (extent != 0 && elements > kLargestBytes / extent) overflow = true;
    elements = overflow ? 0 : elements * extent;
  }
  const auto width = static_cast<std::uint64_t>(element_bytes(type));
  if (overflow || elements > kLargestBytes / width) {
    throw_error(ErrorKind::checkpoint, "{}: tensor '{}': the size of shape {} with {} overflows 63 bits", file,
                shown(entry.name), shape_text(shape), entry.type);
  }
  return elements * width;
}

Tensor check_entry(const RawEntry& entry, const std::byte* data, std::uint64_t data_start, std::uint64_t size,
                   const std::filesystem::path& path) {
  const std::string file = path.string();
  const std::optional<TensorType> type = tensor_type_from(entry.type);
  if (!type)
    throw_error(ErrorKind::checkpoint, "{}: tensor '{}': unknown dtype '{}'", file, shown(entry.name),
                shown(entry.type));
  Tensor tensor;
  tensor.name = entry.name;
  tensor.type = *type;
  tensor.file = path;
  tensor.bytes = shape_bytes(entry, *type, tensor.shape, file);
  if (entry.offsets.size() != 2) {
    throw_error(ErrorKind::checkpoint, "{}: tensor '{}': data_offsets must hold 2 numbers, found {}", file,
                shown(entry.name), entry.offsets.size());
  }
  const std::uint64_t begin = entry.offsets[0];
  const std::uint64_t end = entry.offsets[1];
  if (begin > end) {
    throw_error(ErrorKind::checkpoint, "{}: tensor '{}': data_offsets [{}, {}] run backwards", file, shown(entry.name),
                begin, end);
  }
  if (end - begin != tensor.bytes) {
    throw_error(ErrorKind::checkpoint, "{}: tensor '{}': data_offsets [{}, {}] hold {} bytes, shape {} of {} needs {}",
                file, shown(entry.name), begin, end, end - begin, shape_text(tensor.shape), entry.type, tensor.bytes);
  }
  if (end > size - data_start) {
    // Written as start + end so that the number can be compared with the size of the file; 128 bits are not needed for
    // text.
    const std::string needed = end > UINT64_MAX - data_start ? "beyond 2^64" : fmt::format("{}", data_start + end);
    throw_error(ErrorKind::checkpoint,
                "{}: tensor '{}' needs the file to reach byte {}, it has {} bytes; the file is truncated or still "
                "being written, copy "
                "or download it again",
                file, shown(entry.name), needed, size);
  }
  tensor.data = data + data_start + begin;
  return tensor;
}

// Sorts by position and counts what no tensor owns; two tensors that share a byte are an error.
void check_positions(SafetensorsLayout& layout, const std::byte* data, std::uint64_t size, const std::string& file) {
  std::stable_sort(layout.tensors.begin(), layout.tensors.end(), [](const Tensor& a, const Tensor& b) {
    return a.data != b.data ? a.data < b.data : a.bytes < b.bytes;
  });
  const std::byte* end = data + layout.data_start;
  const Tensor* previous = nullptr;
  for (const Tensor& tensor : layout.tensors) {
    if (tensor.bytes == 0) continue;
    if (tensor.data < end) {
      throw_error(ErrorKind::checkpoint,
                  "{}: tensors '{}' and '{}' overlap: the second begins at data byte {}, the first ends at {}", file,
                  shown(previous->name), shown(tensor.name),
                  tensor.data - data - static_cast<std::int64_t>(layout.data_start),
                  end - data - static_cast<std::int64_t>(layout.data_start));
    }
    layout.hole_bytes += static_cast<std::uint64_t>(tensor.data - end);
    end = tensor.data + tensor.bytes;
    previous = &tensor;
  }
  layout.trailing_bytes = size - static_cast<std::uint64_t>(end - data);
}

}  // namespace

SafetensorsLayout parse_safetensors(const std::byte* data, std::uint64_t size, const std::filesystem::path& path) {
  const std::string file = path.string();
  const std::uint64_t header = read_header_length(data, size, file);
  const char* text = reinterpret_cast<const char*>(data) + 8;
  if (*text != '{') throw_error(ErrorKind::checkpoint, "{}: safetensors header does not start with '{{'", file);
  HeaderSax sax(file);
  if (!nlohmann::json::sax_parse(text, text + header, &sax)) {
    throw_error(ErrorKind::checkpoint, "{}: safetensors header is not valid JSON", file);
  }
  SafetensorsLayout layout;
  layout.metadata = std::move(sax.metadata);
  layout.data_start = 8 + header;
  layout.tensors.reserve(sax.entries.size());
  for (const RawEntry& entry : sax.entries)
    layout.tensors.push_back(check_entry(entry, data, layout.data_start, size, path));
  check_positions(layout, data, size, file);
  return layout;
}

}  // namespace facet
