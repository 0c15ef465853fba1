#include "reference_data.h"

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>

namespace facet::test {
namespace {

using Json = nlohmann::json;

Json read_json(const std::filesystem::path& file) {
  std::ifstream stream(file);
  if (!stream) throw std::runtime_error("cannot read " + file.string());
  return Json::parse(stream);
}

template <typename T>
std::vector<T> values(const SafetensorsFile& file, const std::string& name, TensorType type) {
  const Tensor* tensor = file.find(name);
  if (tensor == nullptr || tensor->type != type)
    throw std::runtime_error(file.path().string() + " has no tensor " + name + " of type " + to_string(type));
  std::vector<T> copy(tensor->bytes / sizeof(T));
  std::memcpy(copy.data(), tensor->data, tensor->bytes);
  return copy;
}

}  // namespace

std::filesystem::path reference_file(const std::string& name) {
  return std::filesystem::path(FACET_SOURCE_DIR) / "tests/data/reference" / name;
}

std::filesystem::path embedded_checkpoint() {
  return std::filesystem::path(FACET_SOURCE_DIR) / "models/gemma4/checkpoints/docs-5m";
}

std::optional<std::filesystem::path> reference_checkpoint(const std::string& name) {
  const char* folder = std::getenv("FACET_REFERENCE_DIR");
  const std::filesystem::path root =
      folder != nullptr ? std::filesystem::path(folder) : std::filesystem::path(FACET_SOURCE_DIR) / "../shared";
  const std::filesystem::path path = (root / "models" / name).lexically_normal();
  if (!std::filesystem::exists(path / "config.json")) return std::nullopt;
  return path;
}

std::string skip_reason(const std::string& checkpoint) {
  return "no checkpoint " + checkpoint + ": set FACET_REFERENCE_DIR to the folder that holds models/" + checkpoint;
}

std::vector<Ids> read_id_lines(const std::filesystem::path& file) {
  std::ifstream stream(file);
  if (!stream) throw std::runtime_error("cannot read " + file.string());
  std::vector<Ids> lines;
  for (std::string line; std::getline(stream, line);) lines.push_back(Json::parse(line).get<Ids>());
  return lines;
}

NllReference nll_reference(const std::string& section) {
  const Json json = read_json(reference_file("nll_reference.json")).at(section);
  NllReference reference;
  reference.mean = json.at("mean_nll").get<double>();
  for (const auto& [length, value] : json.at("buckets").items()) reference.buckets[std::stoul(length)] = value;
  reference.sequences = json.at("sequence_nll").get<std::vector<double>>();
  return reference;
}

GreedyReference greedy_reference(const std::string& section) {
  const Json json = read_json(reference_file("greedy_reference.json")).at(section);
  return {json.at("prompts").get<std::vector<Ids>>(), json.at("greedy").get<std::vector<Ids>>(),
          json.at("top2_gap").get<std::vector<std::vector<double>>>()};
}

std::vector<float> float_values(const SafetensorsFile& file, const std::string& name) {
  return values<float>(file, name, TensorType::f32);
}

Ids id_values(const SafetensorsFile& file, const std::string& name) {
  return values<std::int32_t>(file, name, TensorType::i32);
}

}  // namespace facet::test
