// Writes one safetensors file as a whole or not at all.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "facet/checkpoint/tensor.h"

namespace facet {

// Tensors are declared first and produced while writing, so a checkpoint larger than memory streams through.
// File layout: the header is padded with spaces so that data starts at a multiple of 64. The format allows no holes, so
// tensors whose size is a multiple of 64 come first (each is then 64-byte aligned), the rest by element size, largest
// first (each is then aligned to its element); within a class in the order of add().
class SafetensorsWriter {
 public:
  // Appends bytes to the tensor that is being produced.
  using Append = std::function<void(const void* bytes, std::uint64_t count)>;
  // Called once, during write(), in file order; must append exactly the declared bytes. What it throws ends the write.
  using Produce = std::function<void(const Append& append)>;

  // `file` is replaced when it exists. Its folder must exist.
  explicit SafetensorsWriter(std::filesystem::path file, std::map<std::string, std::string> metadata = {});

  // Throws Error(run) for a name that was added before, a negative extent or an overflowing size.
  void add(std::string name, TensorType type, std::vector<std::int64_t> shape, Produce produce);
  // Bytes that are borrowed until write() returns.
  void add(std::string name, TensorType type, std::vector<std::int64_t> shape, const void* data);

  // Writes to a temporary name in the same folder, syncs and renames; returns the size of the file in bytes. On any
  // failure the temporary file is removed and Error(run) names the path and the bytes (disk full, file size limit,
  // wrong producer). A killed process leaves at most the temporary file, whose name ends in ".partial". Call once.
  std::uint64_t write();

 private:
  struct Entry {
    std::string name;
    TensorType type;
    std::vector<std::int64_t> shape;
    std::uint64_t bytes;
    Produce produce;
  };
  std::string header() const;

  std::filesystem::path file_;
  std::map<std::string, std::string> metadata_;
  std::vector<Entry> entries_;
};

// Writes a small text file the same way: whole or not at all.
void write_text_atomically(const std::filesystem::path& file, const std::string& text);

}  // namespace facet
