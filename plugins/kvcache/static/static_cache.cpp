// static: every sequence owns room for its longest form from the start. The baseline that other policies must equal.
#include "common/slot_cache.h"
#include "common/storage.h"

namespace facet::kvcache {

class StaticCache final : public SlotCache {
 public:
  static constexpr sdk::PluginInfo kInfo = {
      .name = "static",
      .version = "0.1.0",
      .summary = "One slot of max_context rows for every sequence; nothing is reused, any rollback",
      .devices = static_cast<std::uint32_t>(abi::Device::cpu) | static_cast<std::uint32_t>(abi::Device::cuda),
      .flags = abi::kGraphSafe | abi::kDeterministic | abi::kBatchInvariant,
  };
  static constexpr abi::OptionSpec kOptions[] = {storage_option()};

  StaticCache(sdk::Host /*host*/, const sdk::OptionReader& options)
      : SlotCache(storage_type(options.text("storage"))) {}

 protected:
  void check_policy(const abi::KvProblem& /*problem*/, sdk::Reasons& /*reasons*/) const override {}
  SlotRules rules(const abi::KvProblem& problem) const override {
    return {abi::KvAddressing::contiguous, problem.max_context, std::min(problem.max_chunk, problem.max_context),
            problem.max_context};
  }
};

}  // namespace facet::kvcache

FACET_EXPORT_PLUGIN(facet::kvcache::StaticCache)
