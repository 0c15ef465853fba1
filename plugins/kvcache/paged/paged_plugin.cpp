// paged: blocks of rows from one pool, given out as sequences grow, shared by sequences with the same beginning.
#include "common/storage.h"
#include "paged/paged_cache.h"

namespace facet::kvcache {

class PagedPlugin final : public PagedCache {
 public:
  static constexpr sdk::PluginInfo kInfo = {
      .name = "paged",
      .version = "0.1.0",
      .summary = "Blocks from one pool as sequences grow; equal prefixes are stored once and kept for later requests",
      .devices = static_cast<std::uint32_t>(abi::Device::cpu) | static_cast<std::uint32_t>(abi::Device::cuda),
      .flags = abi::kGraphSafe | abi::kDeterministic | abi::kBatchInvariant,
  };
  static constexpr abi::OptionSpec kOptions[] = {
      storage_option(),
      sdk::integer_option("block_tokens", 16, 1, 4096, "tokens", "rows of one block"),
      sdk::integer_option(
          "pool_tokens", 0, 0, 1099511627776, "tokens",
          "rows of the pool, rounded up to blocks; 0: enough for all sequences at their longest, under a window "
          "for its rows and those of a step"),
      sdk::boolean_option("prefix_reuse", true, "keep full blocks of ended sequences for requests that begin alike"),
      sdk::integer_option("rollback", 0, 0, 1048576, "tokens",
                          "rows that may be taken back: they stay behind a window and are not offered for reuse yet; "
                          "a global group without prefix_reuse takes back any number"),
  };

  PagedPlugin(sdk::Host /*host*/, const sdk::OptionReader& options)
      : PagedCache({.element = storage_type(options.text("storage")),
                    .block_tokens = options.integer("block_tokens"),
                    .pool_tokens = options.integer("pool_tokens"),
                    .rollback = options.integer("rollback"),
                    .prefix_reuse = options.boolean("prefix_reuse")}) {}
};

}  // namespace facet::kvcache

FACET_EXPORT_PLUGIN(facet::kvcache::PagedPlugin)
