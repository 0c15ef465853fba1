#include "facet/checkpoint/safetensors.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "facet/base/error.h"
#include "facet/base/file.h"
#include "facet/base/log.h"
#include "facet/checkpoint/mapping_fault.h"

namespace facet {
SafetensorsFile SafetensorsFile::open(const std::filesystem::path& file) {
  const RegularFile source(file, ErrorKind::checkpoint);  // the mapping outlives its descriptor
  SafetensorsFile result;
  result.path_ = file;
  result.size_ = source.size();
  if (result.size_ > 0) {  // an empty file cannot be mapped; the parser says what is wrong with it
    void* map = ::mmap(nullptr, result.size_, PROT_READ, MAP_PRIVATE, source.descriptor(), 0);
    if (map == MAP_FAILED) {
      result.size_ = 0;
      throw_error(ErrorKind::checkpoint, "{}: cannot map {} bytes: {}", file.string(), source.size(),
                  std::strerror(errno));
    }
    result.data_ = static_cast<const std::byte*>(map);
    note_mapping(result.data_, result.size_, file.string());
  }
  result.layout_ = parse_safetensors(result.data_, result.size_, file);
  for (std::size_t i = 0; i < result.layout_.tensors.size(); ++i) result.by_name_[result.layout_.tensors[i].name] = i;
  if (result.layout_.trailing_bytes > 0) {
    log(LogLevel::warn, "{}: {} bytes follow the last tensor; they are ignored", file.string(),
        result.layout_.trailing_bytes);
  }
  return result;
}

SafetensorsFile::SafetensorsFile(SafetensorsFile&& other) noexcept {
  *this = std::move(other);
}

SafetensorsFile& SafetensorsFile::operator=(SafetensorsFile&& other) noexcept {
  if (this == &other) return *this;
  unmap();
  path_ = std::move(other.path_);
  data_ = std::exchange(other.data_, nullptr);
  size_ = std::exchange(other.size_, 0);
  layout_ = std::move(other.layout_);
  by_name_ = std::move(other.by_name_);
  return *this;
}

SafetensorsFile::~SafetensorsFile() {
  unmap();
}

void SafetensorsFile::unmap() noexcept {
  if (data_ != nullptr) {
    forget_mapping(data_);
    ::munmap(const_cast<std::byte*>(data_), size_);
  }
  data_ = nullptr;
}

const Tensor* SafetensorsFile::find(std::string_view name) const noexcept {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &layout_.tensors[found->second];
}

void SafetensorsFile::release_pages() const noexcept {
  if (data_ != nullptr) ::madvise(const_cast<std::byte*>(data_), size_, MADV_DONTNEED);
}

}  // namespace facet
