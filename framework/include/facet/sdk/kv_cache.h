// Base class of cache policies: the methods below may throw; the host sees statuses.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "facet/sdk/attention.h"

namespace facet::sdk {

inline std::string to_string(const abi::KvProblem& problem) {
  return concat(problem.layer_count, " layers, ", problem.kv_heads, " KV heads, head_dim ", problem.head_dim,
                shared_form_to_string(problem.key_channels), ", ",
                problem.window > 0 ? concat("window ", problem.window) : std::string("global"), ", ",
                problem.max_sequences, " sequences of ", problem.max_context, " tokens, chunk ", problem.max_chunk,
                " of ", problem.max_step_tokens, " a step, ", to_string(problem.device));
}

// One instance serves one group of layers; bind() comes once, so state lives in the class itself.
class KvCacheBase : public abi::KvCache {
 public:
  using Interface = abi::KvCache;
  static constexpr abi::PluginKind kKind = abi::PluginKind::kv_cache;
  static constexpr std::uint32_t kInterfaceVersion = abi::kKvCacheInterfaceVersion;
  using Tokens = std::span<const std::int32_t>;

  virtual ~KvCacheBase() = default;

  // Whether all of it heeds key_channels; without, a problem that has any is refused before check() is asked, and the
  // host asks for whole keys.
  virtual bool stores_shared_form() const { return false; }
  virtual void check(const abi::KvProblem& problem, Reasons& reasons) const = 0;
  virtual std::vector<abi::KvLayout> offer(const abi::KvProblem& problem) const = 0;
  // Fills every size of `plan` (handle stays null: the instance is the state); must not allocate the pool.
  virtual void make_plan(const abi::KvProblem& problem, const abi::KvLayout& layout, abi::KvPlan& plan) = 0;
  virtual void start(abi::Memory pool) = 0;
  virtual std::int64_t find_prefix(Tokens /*tokens*/, std::uint64_t /*salt*/, std::int64_t /*limit*/) const {
    return 0;
  }
  virtual void open_sequence(std::uint64_t sequence, Tokens reused, std::uint64_t salt) = 0;
  virtual void reserve_rows(std::uint64_t sequence, std::int64_t count) = 0;
  virtual void cancel_rows(std::uint64_t sequence) = 0;
  virtual void fix_tables(std::span<const std::uint64_t> sequences) = 0;
  virtual void fill_view(std::int64_t layer, abi::KvView& view) = 0;
  virtual void commit_rows(std::uint64_t sequence, Tokens tokens) = 0;
  virtual void take_back(std::uint64_t sequence, std::int64_t count) = 0;
  virtual void close_sequence(std::uint64_t sequence) = 0;
  virtual void report(abi::KvUsage& usage) const = 0;

  std::uint32_t supports(const abi::KvProblem& problem, abi::TextSink sink) const noexcept final {
    return answer_supports(sink, [&](Reasons& reasons) { check_all(problem, reasons); });
  }
  std::uint32_t layouts(const abi::KvProblem& problem, abi::KvLayout* out,
                        std::uint32_t capacity) const noexcept final {
    return answer_list(out, capacity, [&] { return offer(problem); });
  }
  abi::Status plan(const abi::KvProblem& problem, const abi::KvLayout& layout, abi::KvPlan* plan,
                   abi::TextSink error) noexcept final {
    return guarded(error, [&] {
      require_supported([&](Reasons& reasons) { check_all(problem, reasons); });
      *plan = abi::KvPlan{};
      plan->size = sizeof *plan;
      plan->layout = layout;
      make_plan(problem, layout, *plan);
    });
  }
  abi::Status bind(const abi::KvPlan& plan, abi::Memory pool, abi::TextSink error) noexcept final {
    return guarded(error, [&] {
      if (pool.bytes < plan.pool_bytes)
        fail(abi::Status::invalid_argument, "the pool has ", pool.bytes, " bytes, planned were ", plan.pool_bytes);
      start(pool);
    });
  }
  std::int64_t match(const std::int32_t* tokens, std::int64_t count, std::uint64_t salt,
                     std::int64_t limit) const noexcept final {
    std::int64_t found = 0;
    guarded(no_text(), [&] { found = find_prefix({tokens, static_cast<std::size_t>(count)}, salt, limit); });
    return found;
  }
  abi::Status open(std::uint64_t sequence, const std::int32_t* tokens, std::int64_t reuse, std::uint64_t salt,
                   abi::TextSink error) noexcept final {
    return guarded(error, [&] { open_sequence(sequence, {tokens, static_cast<std::size_t>(reuse)}, salt); });
  }
  abi::Status reserve(std::uint64_t sequence, std::int64_t count, abi::TextSink error) noexcept final {
    return guarded(error, [&] { reserve_rows(sequence, count); });
  }
  void cancel(std::uint64_t sequence) noexcept final {
    guarded(no_text(), [&] { cancel_rows(sequence); });
  }
  abi::Status begin_step(const std::uint64_t* sequences, std::int32_t count, abi::TextSink error) noexcept final {
    return guarded(error, [&] { fix_tables({sequences, static_cast<std::size_t>(count)}); });
  }
  abi::Status view(std::int64_t layer, abi::KvView* view, abi::TextSink error) noexcept final {
    return guarded(error, [&] {
      *view = abi::KvView{};
      view->size = sizeof *view;
      fill_view(layer, *view);
    });
  }
  abi::Status commit(std::uint64_t sequence, const std::int32_t* tokens, std::int64_t count,
                     abi::TextSink error) noexcept final {
    return guarded(error, [&] { commit_rows(sequence, {tokens, static_cast<std::size_t>(count)}); });
  }
  abi::Status rollback(std::uint64_t sequence, std::int64_t count, abi::TextSink error) noexcept final {
    return guarded(error, [&] { take_back(sequence, count); });
  }
  void close(std::uint64_t sequence) noexcept final {
    guarded(no_text(), [&] { close_sequence(sequence); });
  }
  void usage(abi::KvUsage* usage) const noexcept final {
    *usage = abi::KvUsage{};
    usage->size = sizeof *usage;
    guarded(no_text(), [&] { report(*usage); });
  }
  void release(abi::KvPlan* /*plan*/) noexcept final {}

 private:
  void check_all(const abi::KvProblem& problem, Reasons& reasons) const {
    reasons.require(problem.key_channels == 0 || stores_shared_form(),
                    "stores no shared form of the cache (key_channels ", problem.key_channels, ")");
    check(problem, reasons);
  }
};

}  // namespace facet::sdk
