// Two-layer Gemma 4 checkpoints with random weights, one layer of each kind, to be bent before they are written.
#pragma once

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "facet/checkpoint/tensor.h"

namespace facet::test {

// A folder of its own that goes away with the object.
class TestFolder {
 public:
  TestFolder();
  ~TestFolder();
  TestFolder(const TestFolder&) = delete;
  TestFolder& operator=(const TestFolder&) = delete;
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

class TinyCheckpoint {
 public:
  static constexpr std::int64_t kHidden = 64, kFeedForward = 96, kVocabulary = 80, kWindow = 8;

  // Layer 0 slides, layer 1 is global and takes its values from its keys; the head is tied to the embedding.
  explicit TinyCheckpoint(std::uint64_t seed);

  // Tensors are 16 bits wide: BF16 or F16.
  struct Values {
    TensorType type = TensorType::bf16;
    std::vector<std::int64_t> shape;
    std::vector<std::uint16_t> bits;
  };
  std::map<std::string, Values> tensors;
  nlohmann::json config;

  Values random(std::vector<std::int64_t> shape, double mean, double deviation);
  // As a multimodal file holds it: config inside text_config, names under model.language_model, other towers beside.
  void nest();
  void write(const std::filesystem::path& folder) const;

 private:
  void add_layer(int index, bool sliding);
  std::uint64_t state_;
};

}  // namespace facet::test
