// Layers that share a KV cache: one shape, one window, one form.
#pragma once

#include <algorithm>
#include <vector>

#include "facet/engine/kv_manager.h"
#include "gemma4/gemma4_config.h"

namespace facet::gemma4 {

// The number of the layer's group among `groups`, to which one without layers is added when there is none.
inline std::size_t kv_group_of(std::vector<KvGroupSpec>& groups, const LayerConfig& layer) {
  const auto same = std::find_if(groups.begin(), groups.end(), [&](const KvGroupSpec& group) {
    return group.window == layer.window && group.head_dim == layer.head_dim && group.kv_heads == layer.kv_heads &&
           group.turned_channels == layer.turned_channels();
  });
  const auto number = static_cast<std::size_t>(same - groups.begin());
  if (same == groups.end())
    groups.push_back({layer.sliding ? "sliding" : "global",
                      {},
                      layer.kv_heads,
                      layer.head_dim,
                      layer.window,
                      layer.turned_channels()});
  return number;
}

}  // namespace facet::gemma4
