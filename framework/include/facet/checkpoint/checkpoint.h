// A model folder: config, and weights in one safetensors file or in shards with an index.
#pragma once

#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "facet/checkpoint/safetensors.h"
#include "facet/checkpoint/tensor.h"

namespace facet {

// Movable; tensor pointers stay valid across moves. Const access is thread-safe.
class Checkpoint {
 public:
  // Opens `directory` and checks every file and the index before returning; nothing is read beyond headers.
  //   model.safetensors.index.json present: its weight_map must name every tensor exactly once and in the right shard.
  //   Missing
  //     shards, a tensor in another shard than the index says, a tensor that no index entry names, a tensor in two
  //     shards: all of them are listed in one Error(checkpoint) with names and files. Safetensors files the index does
  //     not name are ignored with a warning that lists them.
  //   no index: model.safetensors alone. Several shards without an index are an Error(checkpoint); other safetensors
  //   files
  //     beside model.safetensors are ignored with a warning.
  static Checkpoint open(const std::filesystem::path& directory);

  Checkpoint(Checkpoint&&) noexcept = default;
  Checkpoint& operator=(Checkpoint&&) noexcept = default;

  const std::filesystem::path& directory() const noexcept { return directory_; }
  // Null when absent. The pointer lives as long as the checkpoint's files (see keep_alive).
  const Tensor* find(std::string_view name) const noexcept;
  // The tensor, or Error(checkpoint): absent (with the nearest existing name), another shape or another type; both
  // values shown.
  const Tensor& require(std::string_view name, const std::vector<std::int64_t>& shape,
                        std::initializer_list<TensorType> allowed) const;
  // All tensor names, sorted.
  std::vector<std::string> names() const;
  // Bytes of all tensors together.
  std::uint64_t tensor_bytes() const noexcept;

  // Text of config.json. Throws Error(checkpoint) when the folder has none.
  const std::string& config_json() const;
  // Text of another file of the folder, e.g. generation_config.json; nothing when absent. Throws Error(checkpoint) when
  // it exists but cannot be read. `name` is a plain file name.
  std::optional<std::string> file_text(std::string_view name) const;

  // Identifies the contents for run records: 64-bit FNV-1a over config.json and, per weight file in name order, its
  // name, size, header, and up to 64 bytes at the start, middle and end of every tensor. The same for a copied folder.
  // A change elsewhere in a tensor is not seen: it tells builds apart, it does not prove integrity. Reads at most three
  // pages a tensor.
  std::uint64_t content_hash() const;

  // Gives all pages read so far back to the system (they are clean and come back when touched).
  void release_pages() const noexcept;
  // Holding this keeps every mapping alive, even after the checkpoint is destroyed.
  std::shared_ptr<const void> keep_alive() const noexcept { return files_; }
  // The mapped weight files, in name order.
  const std::vector<SafetensorsFile>& files() const noexcept { return *files_; }

 private:
  Checkpoint() = default;
  void open_single();
  void open_sharded(const std::string& index_text);

  std::filesystem::path directory_;
  std::optional<std::string> config_;
  std::shared_ptr<std::vector<SafetensorsFile>> files_;
  std::map<std::string, const Tensor*, std::less<>> tensors_;
};

// A small vector [count] as floats: norm weights, scalars. Accepts F32, BF16 and F16 (all exact); for count 1 also a
// scalar. Throws Error(checkpoint) as Checkpoint::require does, and when a value is not finite.
std::vector<float> load_vector(const Checkpoint& checkpoint, std::string_view name, std::int64_t count);

}  // namespace facet
