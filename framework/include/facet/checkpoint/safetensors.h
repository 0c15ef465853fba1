// One safetensors file, mapped read-only and checked as a whole before any tensor can be reached.
// Format: 8 bytes little-endian header length, a JSON header, then the data. https://huggingface.co/docs/safetensors
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "facet/checkpoint/tensor.h"

namespace facet {

// A header larger than this is refused (the format's own limit).
inline constexpr std::uint64_t kMaxSafetensorsHeaderBytes = 100'000'000;

// What a valid header says.
struct SafetensorsLayout {
  std::vector<Tensor> tensors;  // by position in the file
  std::map<std::string, std::string> metadata;
  std::uint64_t data_start = 0;      // first byte after the header
  std::uint64_t trailing_bytes = 0;  // bytes after the last tensor, which no tensor owns
  std::uint64_t hole_bytes = 0;      // bytes between tensors, which no tensor owns
};

// Checks a whole file image of `size` bytes at `data` and returns its layout; Tensor::data points into it, Tensor::file
// is `file`. Throws Error(checkpoint) that names the file, the tensor, and both the needed and the real size for: a
// file too short for its header length; an empty or oversized header; malformed JSON or unknown fields; a duplicate
// tensor; an unknown type; a shape whose product overflows; offsets out of order, outside the file, overlapping, or
// unequal to shape * type. Holes and trailing bytes are legal and counted. No byte outside [data, data + size) is read.
SafetensorsLayout parse_safetensors(const std::byte* data, std::uint64_t size, const std::filesystem::path& file);

// Move-only; tensor pointers stay valid across moves and die with the object.
class SafetensorsFile {
 public:
  // Maps and checks `file`. Throws as parse_safetensors does, and Error(checkpoint) when it cannot be opened or mapped
  // or is no regular file. Logs a warning for trailing bytes. The size is taken from the open file, so a file that is
  // still being written is refused as too short. One that is shortened while it is in use raises SIGBUS: see
  // mapping_fault.h.
  static SafetensorsFile open(const std::filesystem::path& file);

  SafetensorsFile(SafetensorsFile&&) noexcept;
  SafetensorsFile& operator=(SafetensorsFile&&) noexcept;
  SafetensorsFile(const SafetensorsFile&) = delete;
  SafetensorsFile& operator=(const SafetensorsFile&) = delete;
  ~SafetensorsFile();

  const std::filesystem::path& path() const noexcept { return path_; }
  std::uint64_t file_bytes() const noexcept { return size_; }
  const SafetensorsLayout& layout() const noexcept { return layout_; }
  const std::vector<Tensor>& tensors() const noexcept { return layout_.tensors; }
  // Null when absent. O(log n).
  const Tensor* find(std::string_view name) const noexcept;
  // Start of the mapping, file_bytes() long.
  const std::byte* image() const noexcept { return data_; }
  // Gives the pages read so far back to the system; the next access reads the file again.
  void release_pages() const noexcept;

 private:
  SafetensorsFile() = default;
  void unmap() noexcept;

  std::filesystem::path path_;
  const std::byte* data_ = nullptr;
  std::uint64_t size_ = 0;
  SafetensorsLayout layout_;
  std::map<std::string, std::size_t, std::less<>> by_name_;
};

}  // namespace facet
