// Base class of attention plugins: write check(), offer(), make_plan() and launch(); any of them may throw.
#pragma once

#include <memory>
#include <vector>

#include "facet/sdk/export.h"
#include "facet/sdk/kv_rows.h"

namespace facet::sdk {

inline std::string to_string(const abi::KvLayout& layout) {
  const char* addressing = layout.addressing == abi::KvAddressing::contiguous ? "contiguous"
                           : layout.addressing == abi::KvAddressing::ring     ? "ring"
                           : layout.addressing == abi::KvAddressing::paged    ? "paged"
                                                                              : "none";
  const char* order = layout.order == abi::KvOrder::token_major  ? "token-major"
                      : layout.order == abi::KvOrder::head_major ? "head-major"
                                                                 : "none";
  return concat(addressing, " ", order, " ", to_string(layout.element),
                layout.scales == abi::KvScales::per_row_head ? " with a scale a row and head" : "", ", block rows ",
                layout.block_rows == 0 ? std::string("any") : std::to_string(layout.block_rows));
}

// "preparation"
inline std::string attention_fusions_to_string(std::uint32_t fusions) {
  std::string text = (fusions & abi::kFusePreparation) != 0 ? "preparation" : "";
  fusions &= ~static_cast<std::uint32_t>(abi::kFusePreparation);
  if (fusions != 0) text += concat(text.empty() ? "" : ", ", "unknown bits ", fusions);
  return text;
}

// ", 128 channels of a key beside the value"; empty for whole keys
inline std::string shared_form_to_string(std::int64_t key_channels) {
  return key_channels == 0 ? std::string() : concat(", ", key_channels, " channels of a key beside the value");
}

inline std::string to_string(const abi::AttentionProblem& problem) {
  return concat(
      problem.query_heads, " query heads, ", problem.kv_heads, " KV heads, head_dim ", problem.head_dim,
      shared_form_to_string(problem.key_channels), ", ",
      problem.window > 0 ? concat("window ", problem.window) : std::string("global"), ", ", to_string(problem.input),
      " -> ", to_string(problem.output), ", ", to_string(problem.device), ", layer ", problem.layer, ", KV ",
      to_string(problem.layout),
      problem.fusions != 0 ? concat(", fused ", attention_fusions_to_string(problem.fusions)) : std::string());
}

template <typename PlanT>
class AttentionBase : public abi::Attention {
 public:
  using Interface = abi::Attention;
  static constexpr abi::PluginKind kKind = abi::PluginKind::attention;
  static constexpr std::uint32_t kInterfaceVersion = abi::kAttentionInterfaceVersion;

  virtual ~AttentionBase() = default;

  // Bits of abi::AttentionFusion that launch() can do; a problem with others is refused before check() is asked.
  virtual std::uint32_t fusions() const { return 0; }
  // Whether check(), offer() and launch() heed key_channels; without, a problem that has any is refused before check()
  // is asked, and the host asks for whole keys.
  virtual bool reads_shared_form() const { return false; }
  virtual void check(const abi::AttentionProblem& problem, Reasons& reasons) const = 0;
  // Readable layouts, best first; block_rows 0 means any. problem.layout is all zero.
  virtual std::vector<abi::KvLayout> offer(const abi::AttentionProblem& problem) const = 0;
  virtual std::unique_ptr<PlanT> make_plan(const abi::AttentionProblem& problem, abi::AttentionPlan& sizes) = 0;
  virtual void launch(const PlanT& plan, const abi::AttentionArgs& args) = 0;

  std::uint32_t supports(const abi::AttentionProblem& problem, abi::TextSink sink) const noexcept final {
    return answer_supports(sink, [&](Reasons& reasons) { check_all(problem, reasons); });
  }
  std::uint32_t layouts(const abi::AttentionProblem& problem, abi::KvLayout* out,
                        std::uint32_t capacity) const noexcept final {
    return answer_list(out, capacity, [&] { return offer(problem); });
  }
  abi::Status plan(const abi::AttentionProblem& problem, abi::AttentionPlan* plan, abi::TextSink error) noexcept final {
    return guarded(error, [&] {
      require_supported([&](Reasons& reasons) { check_all(problem, reasons); });
      *plan = abi::AttentionPlan{};
      plan->size = sizeof *plan;
      std::unique_ptr<PlanT> made = make_plan(problem, *plan);
      if (made == nullptr) fail(abi::Status::failed, "make_plan() returned null");  // run() would have no plan to read
      plan->handle = made.release();
    });
  }
  abi::Status run(const abi::AttentionPlan& plan, const abi::AttentionArgs& args, abi::TextSink error) noexcept final {
    return guarded(error, [&] { launch(*static_cast<const PlanT*>(plan.handle), args); });
  }
  void release(abi::AttentionPlan* plan) noexcept final {
    delete static_cast<PlanT*>(plan->handle);
    plan->handle = nullptr;
  }

 private:
  void check_all(const abi::AttentionProblem& problem, Reasons& reasons) const {
    const std::uint32_t missing = problem.fusions & ~fusions();
    reasons.require(missing == 0, "fuses no ", attention_fusions_to_string(missing));
    if (problem.key_channels != 0 && !reads_shared_form()) {
      reasons.require(false, "reads no shared form of the cache (key_channels ", problem.key_channels, ")");
      return;  // check() may take the layout for that of whole keys
    }
    check(problem, reasons);
  }
};

}  // namespace facet::sdk
