// The two smallest plugins through the SDK: they stay small, and they work.
#include <cmath>
#include <limits>
#include <random>

#include "facet/sdk/numeric.h"
#include "plugin_fixture.h"

namespace facet {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing_support::fixture;

class MinimalTest : public testing_support::PluginTest {
 protected:
  static std::size_t lines_of(const std::string& file) {
    std::ifstream in(fs::path(FACET_SOURCE_DIR) / "tests/plugin/fixtures" / file);
    std::size_t lines = 0;
    for (std::string line; std::getline(in, line);) ++lines;
    return lines;
  }
  abi::TextSink sink() {
    return {&text_, [](void* context, const char* line, std::uint64_t size) {
              static_cast<std::string*>(context)->append(line, size).append("\n");
            }};
  }
  std::string text_;
};

TEST_F(MinimalTest, StaySmall) {
  EXPECT_GT(lines_of("minimal_scheduler.cpp"), 0u);
  EXPECT_LE(lines_of("minimal_scheduler.cpp"), 60u);
  EXPECT_GT(lines_of("minimal_linear.cpp"), 0u);
  EXPECT_LE(lines_of("minimal_linear.cpp"), 120u);
}

TEST_F(MinimalTest, SchedulerPlansWithItsOption) {
  PluginRegistry plugins = registry();
  const LoadedPlugin& plugin = plugins.load_file(fixture("scheduler_minimal"));
  PluginChoice choice;
  choice.plugin = "minimal";
  choice.options.push_back({"max_chunk", OptionData(std::int64_t{6}), 3, "scheduler.options.max_chunk"});
  Problems problems;
  auto scheduler =
      plugins.create<abi::Scheduler>(plugin, resolve_options(*plugin.descriptor, choice, "test.toml", problems));
  ASSERT_TRUE(problems.empty());
  abi::SequenceView sequences[3] = {};
  for (std::uint64_t i = 0; i < 3; ++i) {
    sequences[i].size = sizeof(abi::SequenceView);
    sequences[i].id = 10 + i;
    sequences[i].pending_tokens = i == 1 ? 2 : 50;
  }
  abi::SchedulerView view{};
  view.size = sizeof view;
  view.sequences = sequences;
  view.sequence_count = 3;
  view.max_chunk = 32;
  std::vector<std::pair<std::uint64_t, std::int64_t>> asked;
  abi::StepBuilder builder{};
  builder.size = sizeof builder;
  builder.context = &asked;
  builder.schedule = [](void* context, std::uint64_t sequence, std::int64_t tokens, std::int64_t* granted) {
    static_cast<decltype(asked)*>(context)->emplace_back(sequence, tokens);
    *granted = tokens;
    return sequence == 11 ? abi::ScheduleResult::no_budget : abi::ScheduleResult::scheduled;
  };
  EXPECT_EQ(scheduler->step(view, builder, sink()), abi::Status::ok) << text_;
  EXPECT_THAT(asked, ElementsAre(std::pair(10u, 6), std::pair(11u, 2)));
}

TEST_F(MinimalTest, LinearMultiplies) {
  PluginRegistry plugins = registry();
  const LoadedPlugin& plugin = plugins.load_file(fixture("linear_minimal"));
  auto linear = plugins.create<abi::Linear>(plugin, OptionSet(*plugin.descriptor));
  constexpr std::int64_t kIn = 67, kRows = 3;
  const std::int64_t outs[2] = {33, 18};
  const std::uint32_t seed = 77;
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<std::uint16_t> values[2];
  abi::WeightView parts[2] = {};
  for (int p = 0; p < 2; ++p) {
    for (std::int64_t i = 0; i < outs[p] * kIn; ++i) values[p].push_back(sdk::float_to_bf16(normal(random)));
    parts[p].size = sizeof(abi::WeightView);
    parts[p].format = abi::WeightFormat::bf16;
    parts[p].out_features = outs[p];
    parts[p].in_features = kIn;
    parts[p].values = values[p].data();
    parts[p].row_bytes = kIn * 2;
  }
  std::vector<float> input(kRows * kIn);
  for (float& value : input) value = normal(random);

  abi::LinearProblem problem{};
  problem.size = sizeof problem;
  problem.device = abi::Device::cpu;
  problem.weight = abi::WeightFormat::bf16;
  problem.out_features = outs[0] + outs[1];
  problem.in_features = kIn;
  problem.symmetric = 1;
  problem.input = problem.output = abi::DType::f32;
  problem.min_rows = 1;
  problem.max_rows = kRows;
  abi::LinearPlan plan{};
  ASSERT_EQ(linear->plan(problem, &plan, sink()), abi::Status::ok) << text_;
  const std::int64_t stride = problem.out_features + 5;
  std::vector<float> output(static_cast<std::size_t>(kRows * stride), std::numeric_limits<float>::quiet_NaN());
  abi::LinearArgs args{};
  args.size = sizeof args;
  args.part_count = 2;
  args.parts = parts;
  args.rows = kRows;
  args.input = input.data();
  args.input_stride = kIn;
  args.output = output.data();
  args.output_stride = stride;
  ASSERT_EQ(linear->run(plan, args, sink()), abi::Status::ok) << text_;
  linear->release(&plan);
  for (std::int64_t row = 0; row < kRows; ++row) {
    for (std::int64_t column = 0; column < stride; ++column) {
      const float got = output[static_cast<std::size_t>(row * stride + column)];
      if (column >= problem.out_features) {
        EXPECT_TRUE(std::isnan(got)) << "written past the row at " << row << "," << column;
        continue;
      }
      const int p = column < outs[0] ? 0 : 1;
      const std::int64_t out = column - (p == 0 ? 0 : outs[0]);
      double sum = 0, magnitude = 0;
      for (std::int64_t in = 0; in < kIn; ++in) {
        const double product =
            static_cast<double>(sdk::bf16_to_float(values[p][static_cast<std::size_t>(out * kIn + in)])) *
            static_cast<double>(input[static_cast<std::size_t>(row * kIn + in)]);
        sum += product;
        magnitude += std::abs(product);
      }
      // kIn roundings of at most half a unit in the last place of a partial sum, which is at most the magnitude.
      EXPECT_NEAR(got, sum, magnitude * kIn * 6e-8) << "seed " << seed << " row " << row << " column " << column;
    }
  }
}

TEST_F(MinimalTest, LinearSaysNoWithAllReasons) {
  PluginRegistry plugins = registry();
  const LoadedPlugin& plugin = plugins.load_file(fixture("linear_minimal"));
  auto linear = plugins.create<abi::Linear>(plugin, OptionSet(*plugin.descriptor));
  abi::LinearProblem problem{};
  problem.size = sizeof problem;
  problem.device = abi::Device::cuda;
  problem.weight = abi::WeightFormat::int4;
  problem.input = problem.output = abi::DType::f32;
  EXPECT_EQ(linear->supports(problem, sink()), 0u);
  EXPECT_EQ(text_, "device is cuda, needed is cpu\nweights are int4, needed are bf16\n");
  text_.clear();
  abi::LinearPlan plan{};
  EXPECT_EQ(linear->plan(problem, &plan, sink()), abi::Status::unsupported);
  EXPECT_THAT(text_, HasSubstr("device is cuda, needed is cpu; weights are int4"));
}

}  // namespace
}  // namespace facet
