// Base class of linear plugins: write check(), make_plan(), pack_weights() and launch(); any of them may throw.
#pragma once

#include <memory>
#include <span>

#include "facet/sdk/export.h"

namespace facet::sdk {

// "residual norm, GELU gate"
inline std::string fusions_to_string(std::uint32_t fusions) {
  std::string text;
  const auto add = [&](std::uint32_t bit, const char* name) {
    if ((fusions & bit) != 0) text += concat(text.empty() ? "" : ", ", name);
    fusions &= ~bit;
  };
  add(abi::kFuseResidualNorm, "residual norm");
  add(abi::kFuseGeluGate, "GELU gate");
  if (fusions != 0) text += concat(text.empty() ? "" : ", ", "unknown bits ", fusions);
  return text;
}

// "y[1..64, 3840] = x[.., 4096] W^T, int4 g128 symmetric, f32 -> f32, cpu, layer 3"
inline std::string to_string(const abi::LinearProblem& problem) {
  return concat("rows ", problem.min_rows, "..", problem.max_rows, ", in ", problem.in_features, ", out ",
                problem.out_features, ", ", to_string(problem.weight),
                problem.group_size > 0 ? concat(" g", problem.group_size) : std::string(),
                problem.weight == abi::WeightFormat::bf16 ? ""
                : problem.symmetric != 0                  ? " symmetric"
                                                          : " asymmetric",
                ", ", to_string(problem.input), " -> ", to_string(problem.output), ", ", to_string(problem.device),
                ", ", problem.layer < 0 ? std::string("output head") : concat("layer ", problem.layer),
                problem.fusions != 0 ? concat(", fused ", fusions_to_string(problem.fusions)) : std::string());
}

// PlanT is the plugin's own; it is made in make_plan() and reaches launch() as it was left.
template <typename PlanT>
class LinearBase : public abi::Linear {
 public:
  using Interface = abi::Linear;
  static constexpr abi::PluginKind kKind = abi::PluginKind::linear;
  static constexpr std::uint32_t kInterfaceVersion = abi::kLinearInterfaceVersion;

  virtual ~LinearBase() = default;

  // Bits of abi::LinearFusion that launch() can do; a problem with others is refused before check() is asked.
  virtual std::uint32_t fusions() const { return 0; }
  // Every reason against the problem. The one predicate of supports() and plan().
  virtual void check(const abi::LinearProblem& problem, Reasons& reasons) const = 0;
  // Sizes: fills workspace_bytes, packed_bytes, packed_alignment of `sizes`; name it with set_layout().
  virtual std::unique_ptr<PlanT> make_plan(const abi::LinearProblem& problem, abi::LinearPlan& sizes) = 0;
  virtual void pack_weights(const PlanT& plan, std::span<const abi::WeightView> parts, abi::Memory packed) = 0;
  virtual void launch(const PlanT& plan, const abi::LinearArgs& args) = 0;

  std::uint32_t supports(const abi::LinearProblem& problem, abi::TextSink sink) const noexcept final {
    return answer_supports(sink, [&](Reasons& reasons) { check_all(problem, reasons); });
  }
  abi::Status plan(const abi::LinearProblem& problem, abi::LinearPlan* plan, abi::TextSink error) noexcept final {
    return guarded(error, [&] {
      require_supported([&](Reasons& reasons) { check_all(problem, reasons); });
      *plan = abi::LinearPlan{};
      plan->size = sizeof *plan;
      std::unique_ptr<PlanT> made = make_plan(problem, *plan);
      if (made == nullptr) fail(abi::Status::failed, "make_plan() returned null");  // run() would have no plan to read
      plan->handle = made.release();
    });
  }
  abi::Status pack(const abi::LinearPlan& plan, const abi::WeightView* parts, std::uint32_t part_count,
                   abi::Memory packed, abi::TextSink error) noexcept final {
    return guarded(error, [&] { pack_weights(own(plan), {parts, part_count}, packed); });
  }
  abi::Status run(const abi::LinearPlan& plan, const abi::LinearArgs& args, abi::TextSink error) noexcept final {
    return guarded(error, [&] { launch(own(plan), args); });
  }
  void release(abi::LinearPlan* plan) noexcept final {
    delete static_cast<PlanT*>(plan->handle);
    plan->handle = nullptr;
  }

 protected:
  static void set_layout(abi::LinearPlan& plan, std::string_view name) {
    if (name.size() >= sizeof plan.layout)
      fail(abi::Status::failed, "layout name '", name, "' is longer than 63 characters");
    name.copy(plan.layout, name.size());
    plan.layout[name.size()] = '\0';
  }

 private:
  void check_all(const abi::LinearProblem& problem, Reasons& reasons) const {
    const std::uint32_t missing = problem.fusions & ~fusions();
    reasons.require(missing == 0, "fuses no ", fusions_to_string(missing));
    check(problem, reasons);
  }
  static const PlanT& own(const abi::LinearPlan& plan) { return *static_cast<const PlanT*>(plan.handle); }
};

}  // namespace facet::sdk
