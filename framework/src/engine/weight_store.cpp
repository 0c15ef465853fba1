#include "facet/engine/weight_store.h"

#include "facet/memory/memory_plan.h"

namespace facet {

const void* WeightStore::get(const Key& key, std::uint64_t alignment, const std::function<void(abi::Memory)>& pack) {
  const auto found = packed_.find(key);
  if (found != packed_.end()) return found->second.data();
  DeviceBuffer buffer = backend_.allocate(key.bytes, alignment, kWeightsTag);
  pack(buffer.memory());
  const void* data = buffer.data();
  packed_.emplace(key, std::move(buffer));
  bytes_ += key.bytes;
  return data;
}

}  // namespace facet
