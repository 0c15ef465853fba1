// model.safetensors.index.json: which shard holds which tensor.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "facet/base/error.h"
#include "facet/checkpoint/safetensors.h"

namespace facet::checkpoint_detail {

// Tensor name -> file name. Throws Error(checkpoint) for malformed JSON, a missing or empty weight_map, a tensor named
// twice, and file names that leave the folder.
std::map<std::string, std::string> parse_shard_index(const std::string& text, const std::string& file);

// Adds one problem for each tensor that is in another shard than the index says, in none, in two, or in no index entry.
// Tensors whose shard is not among `files` are left to the caller, who reported the shard.
void compare_with_index(const std::map<std::string, std::string>& weight_map, const std::vector<SafetensorsFile>& files,
                        Problems& problems);

}  // namespace facet::checkpoint_detail
