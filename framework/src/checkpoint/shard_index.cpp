#include "shard_index.h"

#include <nlohmann/json.hpp>
#include <set>

#include "facet/base/json_keys.h"
#include "header_sax.h"

namespace facet::checkpoint_detail {
namespace {

using nlohmann::json;

json parse_index(const std::string& text, const std::string& file) {
  refuse_repeated_keys(text, ErrorKind::checkpoint, file);
  try {
    return json::parse(text);
  } catch (const json::parse_error& error) {
    throw_error(ErrorKind::checkpoint, "{}: not valid JSON at byte {}", file, error.byte);
  }
}

}  // namespace

std::map<std::string, std::string> parse_shard_index(const std::string& text, const std::string& file) {
  const json index = parse_index(text, file);
  if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object()) {
    throw_error(ErrorKind::checkpoint, "{}: needs an object 'weight_map' from tensor names to file names", file);
  }
  std::map<std::string, std::string> weight_map;
  for (const auto& [name, value] : index["weight_map"].items()) {
    if (!value.is_string())
      throw_error(ErrorKind::checkpoint, "{}: weight_map '{}' must be a file name", file, shown(name));
    const auto& shard = value.get_ref<const std::string&>();
    if (shard.empty() || shard == "." || shard == ".." || shard.find('/') != std::string::npos ||
        shard.find('\0') != std::string::npos) {
      throw_error(ErrorKind::checkpoint, "{}: weight_map '{}': '{}' is not the name of a file in this folder", file,
                  shown(name), shown(shard));
    }
    weight_map.emplace(name, shard);
  }
  if (weight_map.empty()) throw_error(ErrorKind::checkpoint, "{}: weight_map names no tensor", file);
  return weight_map;
}

void compare_with_index(const std::map<std::string, std::string>& weight_map, const std::vector<SafetensorsFile>& files,
                        Problems& problems) {
  std::set<std::string> opened;
  std::map<std::string, std::vector<std::string>> holders;
  for (const SafetensorsFile& file : files) {
    const std::string name = file.path().filename().string();
    opened.insert(name);
    for (const Tensor& tensor : file.tensors()) holders[tensor.name].push_back(name);
  }
  for (const auto& [tensor, shards] : holders) {
    const auto entry = weight_map.find(tensor);
    if (shards.size() > 1) {
      problems.add("tensor '{}' is in two shards: '{}' and '{}'", shown(tensor), shards[0], shards[1]);
    } else if (entry == weight_map.end()) {
      problems.add("tensor '{}' of '{}' is in no index entry", shown(tensor), shards[0]);
    } else if (entry->second != shards[0]) {
      problems.add("tensor '{}' is in '{}', the index says '{}'", shown(tensor), shards[0], entry->second);
    }
  }
  for (const auto& [tensor, shard] : weight_map) {
    if (holders.count(tensor) == 0 && opened.count(shard) > 0) {
      problems.add("tensor '{}' is missing from '{}', where the index puts it", shown(tensor), shard);
    }
  }
}

}  // namespace facet::checkpoint_detail
