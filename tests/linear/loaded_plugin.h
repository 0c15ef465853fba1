// A linear plugin loaded the way the host does it, with a small host table of the test's own: the processor features
// can be masked and every piece of memory is counted.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "facet/abi/linear.h"
#include "facet/abi/plugin.h"

namespace facet::test {

// What this processor has, as bits of abi::CpuFeature.
std::uint64_t cpu_features();

// Instruction sets to test here, from the plainest to all that the processor has: name and mask.
std::vector<std::pair<std::string, std::uint64_t>> isa_levels();

class TestHost {
 public:
  explicit TestHost(std::uint64_t features, std::uint32_t workers = 2);
  TestHost(const TestHost&) = delete;
  TestHost& operator=(const TestHost&) = delete;

  const abi::HostTable& table() const { return table_; }

 private:
  abi::HostTable table_{};
};

// An instance of lib/facet/plugins/linear_<name>.so. Text options by name; others keep their defaults.
class LoadedPlugin {
 public:
  LoadedPlugin(const std::string& name, const TestHost& host, const std::map<std::string, std::string>& options = {});
  ~LoadedPlugin();
  LoadedPlugin(const LoadedPlugin&) = delete;
  LoadedPlugin& operator=(const LoadedPlugin&) = delete;

  abi::Linear& linear() const { return *linear_; }
  const abi::PluginDescriptor& descriptor() const { return *descriptor_; }
  bool claims(abi::PluginFlag flag) const { return (descriptor_->flags & flag) != 0; }

 private:
  const abi::PluginDescriptor* descriptor_ = nullptr;
  abi::Linear* linear_ = nullptr;
};

// Lines written to a sink, joined by newlines.
struct Text {
  std::string text;
  abi::TextSink sink();
};

}  // namespace facet::test
