// The host table with C++ manners.
#pragma once

#include <string_view>
#include <type_traits>

#include "facet/abi/host.h"

namespace facet::sdk {

class Host {
 public:
  explicit Host(const abi::HostTable* table) : table_(table) {}

  const abi::HostTable& table() const { return *table_; }
  bool has(std::uint64_t features) const { return (table_->cpu_features & features) == features; }
  std::int64_t workers() const { return table_->worker_count; }
  void log(abi::LogLevel level, std::string_view text) const {
    table_->log(table_->context, level, text.data(), text.size());
  }
  // body(begin, end, worker) over [0, count) in pieces of at least `grain`; returns when all are done. Must not throw.
  template <typename Body>
  void parallel_for(std::int64_t count, std::int64_t grain, Body&& body) const {
    using Plain = std::remove_reference_t<Body>;
    table_->parallel_for(table_->context, count, grain, const_cast<std::remove_const_t<Plain>*>(&body),
                         [](void* data, std::int64_t begin, std::int64_t end, std::uint32_t worker) {
                           (*static_cast<Plain*>(data))(begin, end, worker);
                         });
  }

 private:
  const abi::HostTable* table_;
};

}  // namespace facet::sdk
