// Who prepares attention: the kernel where it says so and the step is one token a sequence, else the backend.
#include <gmock/gmock.h>

#include <cmath>
#include <limits>

#include "facet/backend/cpu_backend.h"
#include "facet/engine/attention_module.h"
#include "facet/plugin/host_services.h"
#include "facet/sdk/attention.h"

namespace facet::test {
namespace {

using testing::HasSubstr;

// Keeps what it was called with.
class Recorder final : public sdk::AttentionBase<int> {
 public:
  explicit Recorder(std::uint32_t fusions, std::uint64_t prepared_counts = 0b10)
      : fusions_(fusions), prepared_counts_(prepared_counts) {}
  std::uint32_t fusions() const override { return fusions_; }
  void check(const abi::AttentionProblem&, sdk::Reasons&) const override {}
  std::vector<abi::KvLayout> offer(const abi::AttentionProblem&) const override { return {}; }
  std::unique_ptr<int> make_plan(const abi::AttentionProblem&, abi::AttentionPlan& plan) override {
    plan.prepared_counts = prepared_counts_;
    return std::make_unique<int>(0);
  }
  void launch(const int&, const abi::AttentionArgs& seen) override {
    args = seen;
    if (seen.preparation != nullptr) preparation = *seen.preparation;
  }

  abi::AttentionArgs args{};
  abi::AttentionPreparation preparation{};

 private:
  std::uint32_t fusions_;
  std::uint64_t prepared_counts_;
};

void destroy_nothing(void* /*instance*/) {}

const LoadedPlugin& recorder_plugin() {
  static const abi::PluginDescriptor kDescriptor = [] {
    abi::PluginDescriptor descriptor{};
    descriptor.size = sizeof descriptor;
    descriptor.kind = abi::PluginKind::attention;
    descriptor.name = "recorder";
    descriptor.version = "1.0.0";
    descriptor.destroy = destroy_nothing;
    return descriptor;
  }();
  static const LoadedPlugin kPlugin{"attention_recorder.so", &kDescriptor, 0};
  return kPlugin;
}

// One head of four elements, two tokens.
class AttentionModuleTest : public testing::Test {
 protected:
  static constexpr std::int64_t kDim = 4;
  static constexpr std::int32_t kTokens = 2;

  AttentionModuleTest() {
    problem_.size = sizeof problem_;
    problem_.device = abi::Device::cpu;
    problem_.query_heads = problem_.kv_heads = 1;
    problem_.head_dim = kDim;
    view_.size = sizeof view_;
    view_.layout = {sizeof(abi::KvLayout),
                    abi::KvAddressing::contiguous,
                    abi::KvOrder::token_major,
                    abi::DType::f32,
                    abi::KvScales::none,
                    4,
                    64};
    view_.kv_heads = 1;
    view_.head_dim = kDim;
    view_.keys = keys_.data();
    view_.values = values_.data();
    view_.block_stride = 4 * kDim;
    view_.row_stride = view_.head_stride = kDim;
    view_.block_table = table_.data();
    view_.table_stride = 1;
    input_.projections = projections_.data();
    input_.stride = 2 * kDim;
    input_.query_heads = input_.kv_heads = 1;
    input_.head_dim = kDim;
    input_.values_from_keys = true;
    input_.query_norm = input_.key_norm = norm_.data();
    input_.epsilon = 0.25f;
    input_.rotary = {1, cosine_.data(), sine_.data()};
    input_.positions = positions_.data();
    input_.sequence = sequence_.data();
    input_.tokens = kTokens;
    input_.kv = &view_;
    input_.queries = queries_.data();
    batch_.size = sizeof batch_;
    batch_.sequence_count = kTokens;
    batch_.token_count = kTokens;
  }

  // Runs a step of at most `most` tokens a sequence through a module whose kernel took `fusions`.
  void run(Recorder& recorder, std::uint32_t fusions, std::int64_t most) {
    problem_.fusions = fusions;
    auto instance = std::make_shared<AttentionInstance>();
    instance->plugin = PluginInstance<abi::Attention>(&recorder_plugin(), &recorder);
    abi::AttentionPlan plan{};
    SinkText text;
    ASSERT_EQ(recorder.plan(problem_, &plan, text.sink()), abi::Status::ok) << text.text();
    AttentionModule module({}, problem_, instance, plan, {});
    batch_.max_new_tokens = most;
    module.run(*backend_, 0, batch_, input_, output_.data(), {});
    EXPECT_EQ(recorder.args.kv, &view_);
    EXPECT_EQ(recorder.args.output, output_.data());
  }
  bool prepared_by_backend() const { return !std::isnan(queries_[0]) && !std::isnan(keys_[0]); }

  static constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  HostServices services_{1, "generic"};
  std::unique_ptr<Backend> backend_ = make_cpu_backend(services_);
  std::vector<float> keys_ = std::vector<float>(8 * kDim, kNan), values_ = keys_;
  std::vector<float> queries_ = std::vector<float>(kTokens * kDim, kNan), output_ = queries_;
  std::vector<float> projections_ = std::vector<float>(kTokens * 2 * kDim, 2.0f), norm_ = {1, 1, 1, 1};
  std::vector<float> cosine_ = {1, 1}, sine_ = {0, 0};
  std::vector<std::int32_t> table_ = {0, 1}, positions_ = {0, 0}, sequence_ = {0, 1};
  abi::AttentionProblem problem_{};
  abi::KvView view_{};
  abi::BatchView batch_{};
  AttentionInput input_;
};

TEST_F(AttentionModuleTest, KernelThatFusesGetsThePreparationOfADecodeStep) {
  Recorder recorder(abi::kFusePreparation);
  run(recorder, abi::kFusePreparation, 1);
  EXPECT_FALSE(prepared_by_backend());
  ASSERT_NE(recorder.args.preparation, nullptr);
  EXPECT_EQ(recorder.args.queries, nullptr);
  EXPECT_EQ(recorder.preparation.size, sizeof(abi::AttentionPreparation));
  EXPECT_EQ(recorder.preparation.values_from_keys, 1u);
  EXPECT_EQ(recorder.preparation.projections, projections_.data());
  EXPECT_EQ(recorder.preparation.projection_stride, 2 * kDim);
  EXPECT_EQ(recorder.preparation.query_norm, norm_.data());
  EXPECT_EQ(recorder.preparation.key_norm, norm_.data());
  EXPECT_EQ(recorder.preparation.cosine, cosine_.data());
  EXPECT_EQ(recorder.preparation.sine, sine_.data());
  EXPECT_EQ(recorder.preparation.rotary_live, 1);
  EXPECT_EQ(recorder.preparation.epsilon, 0.25f);
}

TEST_F(AttentionModuleTest, OtherStepsComePrepared) {
  Recorder recorder(abi::kFusePreparation);
  run(recorder, abi::kFusePreparation, 2);
  EXPECT_TRUE(prepared_by_backend());
  EXPECT_EQ(recorder.args.preparation, nullptr);
  EXPECT_EQ(recorder.args.queries, queries_.data());
}

TEST_F(AttentionModuleTest, StepsOfANumberOfSequencesThatThePlanDoesNotNameComePrepared) {
  Recorder recorder(abi::kFusePreparation, ~std::uint64_t{0b10});
  run(recorder, abi::kFusePreparation, 1);
  EXPECT_TRUE(prepared_by_backend());
  EXPECT_EQ(recorder.args.preparation, nullptr);
  EXPECT_EQ(recorder.args.queries, queries_.data());
}

TEST_F(AttentionModuleTest, KernelThatDoesNotFuseGetsPreparedSteps) {
  Recorder recorder(0);
  run(recorder, 0, 1);
  EXPECT_TRUE(prepared_by_backend());
  EXPECT_EQ(recorder.args.preparation, nullptr);
  EXPECT_EQ(recorder.args.queries, queries_.data());
}

TEST_F(AttentionModuleTest, ProblemWithAFusionThatTheKernelLacksIsRefused) {
  for (const std::uint32_t fusions : {std::uint32_t{abi::kFusePreparation}, std::uint32_t{1u << 7}}) {
    Recorder recorder(0);
    problem_.fusions = fusions;
    SinkText reasons, error;
    EXPECT_EQ(recorder.supports(problem_, reasons.sink()), 0u);
    EXPECT_THAT(reasons.text(), HasSubstr("fuses no " + sdk::attention_fusions_to_string(fusions)));
    abi::AttentionPlan plan{};
    EXPECT_EQ(recorder.plan(problem_, &plan, error.sink()), abi::Status::unsupported);
  }
}

}  // namespace
}  // namespace facet::test
