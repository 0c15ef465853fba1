// ring: row = position modulo ring_rows, for groups with a window. The step's rows are written before they are read, so
// while a chunk of c rows is attended its first query still needs window - 1 older rows: ring_rows >= window + c - 1.
#include "common/slot_cache.h"
#include "common/storage.h"

namespace facet::kvcache {

class RingCache final : public SlotCache {
 public:
  static constexpr sdk::PluginInfo kInfo = {
      .name = "ring",
      .version = "0.1.0",
      .summary = "Keeps the last window + chunk - 1 rows of every sequence; only for layers with a window",
      .devices = static_cast<std::uint32_t>(abi::Device::cpu) | static_cast<std::uint32_t>(abi::Device::cuda),
      .flags = abi::kGraphSafe | abi::kDeterministic | abi::kBatchInvariant,
  };
  static constexpr abi::OptionSpec kOptions[] = {
      storage_option(),
      sdk::integer_option("slack", 0, 0, 1048576, "tokens", "rows that may be rolled back, for speculative tokens"),
      sdk::integer_option("rows", 0, 0, 2147483647, "tokens",
                          "rows of a ring; 0: window + max_chunk - 1 + slack. A fixed number limits the chunk"),
  };

  RingCache(sdk::Host /*host*/, const sdk::OptionReader& options)
      : SlotCache(storage_type(options.text("storage"))),
        slack_(options.integer("slack")),
        rows_(options.integer("rows")) {}

 protected:
  void check_policy(const abi::KvProblem& problem, sdk::Reasons& reasons) const override {
    reasons.require(
        problem.window > 0,
        "a ring forgets old rows, and this group of layers is global: it needs every row (use static or paged)");
    if (problem.window == 0) return;
    // A ring of the whole context never overwrites anything, whatever the window.
    const std::int64_t least = std::min(problem.window + slack_, problem.max_context);
    reasons.require(rows_ == 0 || rows_ >= least, "rows = ", rows_, " is less than ", least, ": window ",
                    problem.window, " + slack ", slack_, " (or max_context ", problem.max_context, " if less)");
  }

  SlotRules rules(const abi::KvProblem& problem) const override {
    const std::int64_t asked = rows_ != 0 ? rows_ : problem.window + problem.max_chunk - 1 + slack_;
    const std::int64_t rows = std::min(asked, problem.max_context);
    std::int64_t chunk = std::min(problem.max_chunk, problem.max_context);
    if (rows_ != 0) chunk = rows == problem.max_context ? rows : rows - problem.window + 1 - slack_;
    return {abi::KvAddressing::ring, rows, chunk, std::min(slack_, problem.max_context)};
  }

 private:
  std::int64_t slack_;
  std::int64_t rows_;
};

}  // namespace facet::kvcache

FACET_EXPORT_PLUGIN(facet::kvcache::RingCache)
