// attention/reference: for every query row and head gather the visible keys, score, softmax, sum. Nothing is shared
// and nothing is blocked: this is the plugin to compare others with.
#include <algorithm>
#include <cmath>
#include <limits>

#include "common/call.h"
#include "facet/sdk/attention.h"

namespace facet::attention {

namespace {

struct ReferencePlan {
  abi::AttentionProblem problem;
  std::uint64_t workspace_bytes;
  std::int64_t score_count;  // doubles of one worker: scores of the visible keys, then one output row
};

float widen(float value) {
  return value;
}
float widen(std::uint16_t value) {
  return sdk::bf16_to_float(value);
}
float widen(std::int8_t value) {
  return static_cast<float>(value);
}

// q . row in double; eight sums side by side, so that the loop has no long chain of additions.
template <typename Element>
double dot(const float* query, const Element* row, std::int64_t head_dim) {
  double sums[8] = {};
  for (std::int64_t d = 0; d < head_dim; d += 8) {
    for (int lane = 0; lane < 8; ++lane) {
      sums[lane] += static_cast<double>(query[d + lane]) * static_cast<double>(widen(row[d + lane]));
    }
  }
  return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

// One query row of one head.
struct RowTask {
  std::int64_t sequence;
  std::int64_t begin, end;  // visible positions
  std::int64_t kv_head;
  const float* query;
  float* output;
};

// Score of a key before the problem's scale. In the shared form the value stands for what the key does not have.
template <typename Element>
double score_of(const abi::KvView& view, const RowTask& task, std::int64_t offset, std::int64_t scale_offset) {
  const auto* key = static_cast<const Element*>(view.keys) + offset;
  const double key_scale = view.key_scales == nullptr ? 1.0 : static_cast<double>(view.key_scales[scale_offset]);
  if (view.key_channels == 0) return dot(task.query, key, view.head_dim) * key_scale;
  const auto* value = static_cast<const Element*>(view.values) + offset;
  const double value_scale = view.value_scales == nullptr ? 1.0 : static_cast<double>(view.value_scales[scale_offset]);
  const std::int64_t half = view.head_dim / 2, live = view.key_channels / 2;
  const float* second = task.query + half;
  return (dot(task.query, key, live) + dot(second, key + live, live)) * key_scale +
         (dot(task.query + live, value + live, half - live) + dot(second + live, value + half + live, half - live)) *
             value_scale;
}

template <typename Element>
void attend(const abi::AttentionProblem& problem, const abi::KvView& view, const RowTask& task, double* scratch) {
  const std::int64_t head_dim = problem.head_dim;
  double* scores = scratch;
  double* sums = scratch + (task.end - task.begin);
  double largest = -std::numeric_limits<double>::infinity();
  sdk::for_each_kv_run(view, task.sequence, task.begin, task.end, [&](const sdk::KvRun& run) {
    for (std::int64_t i = 0; i < run.count; ++i) {
      const double score =
          score_of<Element>(view, task, run.offset + i * view.row_stride + task.kv_head * view.head_stride,
                            run.scale_offset + i * view.scale_row_stride + task.kv_head * view.scale_head_stride) *
          static_cast<double>(problem.scale);
      scores[run.position - task.begin + i] = score;
      largest = std::max(largest, score);
    }
  });
  std::fill(sums, sums + head_dim, 0.0);
  if (std::isinf(largest) && largest < 0.0) {  // (-inf) - (-inf) is not a weight: nothing is visible
    std::fill(task.output, task.output + head_dim, 0.0f);
    return;
  }
  double weight_sum = 0.0;
  sdk::for_each_kv_run(view, task.sequence, task.begin, task.end, [&](const sdk::KvRun& run) {
    for (std::int64_t i = 0; i < run.count; ++i) {
      const auto* value =
          static_cast<const Element*>(view.values) + run.offset + i * view.row_stride + task.kv_head * view.head_stride;
      double weight = std::exp(scores[run.position - task.begin + i] - largest);
      weight_sum += weight;
      if (view.value_scales != nullptr) {
        weight *= static_cast<double>(
            view.value_scales[run.scale_offset + i * view.scale_row_stride + task.kv_head * view.scale_head_stride]);
      }
      for (std::int64_t d = 0; d < head_dim; ++d) sums[d] += weight * static_cast<double>(widen(value[d]));
    }
  });
  // The key of the largest score has weight 1, so the sum is at least 1 wherever a key is visible.
  for (std::int64_t d = 0; d < head_dim; ++d) task.output[d] = static_cast<float>(sums[d] / weight_sum);
}

class Reference final : public sdk::AttentionBase<ReferencePlan> {
 public:
  static constexpr sdk::PluginInfo kInfo{
      .name = "reference",
      .version = "0.1.0",
      .summary = "plain attention, one query row and head at a time, sums in double",
      .flags = abi::kDeterministic | abi::kBatchInvariant | abi::kRunReentrant,
  };

  Reference(sdk::Host host, const sdk::OptionReader&) : host_(host) {}

  bool reads_shared_form() const override { return true; }
  void check(const abi::AttentionProblem& problem, sdk::Reasons& reasons) const override {
    check_problem(problem, reasons);
  }
  std::vector<abi::KvLayout> offer(const abi::AttentionProblem&) const override { return readable_layouts(); }

  std::unique_ptr<ReferencePlan> make_plan(const abi::AttentionProblem& problem, abi::AttentionPlan& sizes) override {
    auto plan = std::make_unique<ReferencePlan>();
    plan->problem = problem;
    const std::int64_t visible =
        problem.window > 0 ? std::min(problem.window, problem.max_context) : problem.max_context;
    plan->score_count = sdk::round_up(visible + problem.head_dim, 8);
    plan->workspace_bytes = static_cast<std::uint64_t>(host_.workers() * plan->score_count) * sizeof(double);
    sizes.workspace_bytes = plan->workspace_bytes;
    return plan;
  }

  void launch(const ReferencePlan& plan, const abi::AttentionArgs& args) override {
    check_call(plan.problem, args, plan.workspace_bytes);
    switch (plan.problem.layout.element) {
      case abi::DType::f32:
        return run_rows<float>(plan, args);
      case abi::DType::bf16:
        return run_rows<std::uint16_t>(plan, args);
      default:
        return run_rows<std::int8_t>(plan, args);
    }
  }

 private:
  template <typename Element>
  void run_rows(const ReferencePlan& plan, const abi::AttentionArgs& args) const {
    const abi::AttentionProblem& problem = plan.problem;
    const abi::BatchView& batch = *args.batch;
    const std::int64_t group = problem.query_heads / problem.kv_heads;
    host_.parallel_for(
        batch.token_count * problem.query_heads, 1, [&](std::int64_t first, std::int64_t last, std::uint32_t worker) {
          double* scratch = static_cast<double*>(args.workspace.data) + worker * plan.score_count;
          for (std::int64_t index = first; index < last; ++index) {
            const std::int64_t token = index / problem.query_heads;
            const std::int64_t head = index % problem.query_heads;
            float* output = static_cast<float*>(args.output) + token * args.output_stride + head * problem.head_dim;
            const std::int64_t sequence = sequence_of(batch, token);
            if (sequence < 0) {  // a row of nobody sees no key
              std::fill(output, output + problem.head_dim, 0.0f);
              continue;
            }
            const std::int64_t position = batch.first_position[sequence] + (token - batch.token_begin[sequence]);
            const RowTask task{
                sequence,
                sdk::window_begin(position, problem.window),
                position + 1,
                head / group,
                static_cast<const float*>(args.queries) + token * args.query_stride + head * problem.head_dim,
                output};
            attend<Element>(problem, *args.kv, task, scratch);
          }
        });
  }

  // The sequence that owns row `token`; -1 when none does (padding).
  static std::int64_t sequence_of(const abi::BatchView& batch, std::int64_t token) {
    const std::int32_t* begin = batch.token_begin;
    const std::int32_t* end = begin + batch.sequence_count + 1;
    const std::int64_t sequence = std::upper_bound(begin, end, token) - begin - 1;
    return sequence >= 0 && sequence < batch.sequence_count ? sequence : -1;
  }

  sdk::Host host_;
};

}  // namespace

}  // namespace facet::attention

FACET_EXPORT_PLUGIN(facet::attention::Reference)
