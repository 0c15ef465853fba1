// Packed weights, shared by every plan that names the same layout, also across pipelines that compare variants.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "facet/backend/backend.h"

namespace facet {

class WeightStore {
 public:
  // What identifies one packed copy.
  struct Key {
    std::string weights;  // module names and the format they were packed from
    std::string layout;   // abi::LinearPlan::layout
    std::uint64_t bytes = 0;
    auto operator<=>(const Key&) const = default;
  };

  // The backend must outlive the store.
  explicit WeightStore(Backend& backend) : backend_(backend) {}
  // The packed copy for `key`; `pack` fills it the first time. Its exceptions leave the store as it was.
  const void* get(const Key& key, std::uint64_t alignment, const std::function<void(abi::Memory)>& pack);
  bool contains(const Key& key) const { return packed_.count(key) != 0; }
  // Bytes of all copies, as allocated.
  std::uint64_t bytes() const { return bytes_; }

 private:
  Backend& backend_;
  std::map<Key, DeviceBuffer> packed_;
  std::uint64_t bytes_ = 0;
};

}  // namespace facet
