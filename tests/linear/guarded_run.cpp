#include "guarded_run.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>

namespace facet::test {

namespace {

constexpr std::size_t kGuard = 256;
constexpr std::uint8_t kCanary = 0x7f;  // 3e38 as float and as bf16: a read past the end shows in the result
constexpr std::int64_t kPadding = 5;    // elements between rows of x and of y

}  // namespace

GuardedBytes::GuardedBytes(std::uint64_t bytes) : bytes_(bytes) {
  storage_.assign(static_cast<std::size_t>(bytes) + 2 * kGuard + 64, kCanary);
  const auto address = reinterpret_cast<std::uintptr_t>(storage_.data()) + kGuard;
  start_ = kGuard + static_cast<std::size_t>((64 - address % 64) % 64);
  std::memset(storage_.data() + start_, 0xff, static_cast<std::size_t>(bytes));
}

bool GuardedBytes::intact() const {
  const auto is_canary = [](std::uint8_t byte) { return byte == kCanary; };
  const auto begin = storage_.begin() + static_cast<std::ptrdiff_t>(start_);
  return std::all_of(storage_.begin(), begin, is_canary) &&
         std::all_of(begin + static_cast<std::ptrdiff_t>(bytes_), storage_.end(), is_canary);
}

abi::LinearProblem linear_problem(const Problem& problem) {
  abi::LinearProblem made{};
  made.size = sizeof made;
  made.device = abi::Device::cpu;
  made.weight = problem.shape.format;
  made.role = abi::LinearRole::other;
  made.out_features = problem.shape.out_features;
  made.in_features = problem.shape.in_features;
  made.group_size = problem.shape.format == abi::WeightFormat::bf16 ? 0 : problem.shape.group_size;
  made.symmetric = problem.shape.symmetric || problem.shape.format == abi::WeightFormat::bf16 ? 1 : 0;
  made.input = abi::DType::f32;
  made.output = abi::DType::f32;
  made.layer = 3;
  made.min_rows = 1;
  made.max_rows = problem.max_rows;
  return made;
}

PlannedMatrix::PlannedMatrix(const LoadedPlugin& plugin, const Problem& problem, const std::vector<RandomPart>& parts)
    : plugin_(plugin), problem_(problem) {
  for (const RandomPart& part : parts) views_.push_back(part.view());
  Text error;
  if (plugin.linear().plan(linear_problem(problem), &plan_, error.sink()) != abi::Status::ok)
    throw std::runtime_error("plan: " + error.text);
  EXPECT_EQ(plugin.claims(abi::kNeedsPack), plan_.packed_bytes > 0);
  if (plan_.packed_bytes == 0) return;
  EXPECT_NE(plan_.layout[0], '\0');
  packed_.emplace_back(plan_.packed_bytes);
  if (plugin.linear().pack(plan_, views_.data(), static_cast<std::uint32_t>(views_.size()), packed_[0].memory(),
                           error.sink()) != abi::Status::ok)
    throw std::runtime_error("pack: " + error.text);
  EXPECT_TRUE(packed_[0].intact()) << "pack wrote outside its memory";
}

PlannedMatrix::~PlannedMatrix() {
  plugin_.linear().release(&plan_);
}

std::vector<float> PlannedMatrix::run(const std::vector<float>& inputs) {
  const std::int64_t in = problem_.shape.in_features;
  const std::int64_t out = problem_.shape.out_features;
  const std::int64_t rows = static_cast<std::int64_t>(inputs.size()) / in;
  // The last row of x ends with its buffer: no padding after it.
  GuardedBytes x(static_cast<std::uint64_t>((rows - 1) * (in + kPadding) + in) * sizeof(float));
  for (std::int64_t row = 0; row < rows; ++row)
    std::memcpy(x.data() + row * (in + kPadding) * 4, inputs.data() + row * in, static_cast<std::size_t>(in) * 4);
  GuardedBytes y(static_cast<std::uint64_t>((rows - 1) * (out + kPadding) + out) * sizeof(float));
  GuardedBytes workspace(plan_.workspace_bytes);

  abi::LinearArgs args{};
  args.size = sizeof args;
  args.part_count = static_cast<std::uint32_t>(views_.size());
  args.stream.device = abi::Device::cpu;
  args.rows = rows;
  args.input = x.data();
  args.input_stride = in + kPadding;
  args.output = y.data();
  args.output_stride = out + kPadding;
  args.packed = packed_.empty() ? nullptr : packed_[0].data();
  args.parts = packed_.empty() ? views_.data() : nullptr;
  if (!packed_.empty()) args.part_count = 0;
  args.workspace = workspace.memory();
  Text error;
  EXPECT_EQ(plugin_.linear().run(plan_, args, error.sink()), abi::Status::ok) << error.text;
  EXPECT_TRUE(x.intact() && y.intact() && workspace.intact()) << "run wrote outside its buffers";
  EXPECT_TRUE(packed_.empty() || packed_[0].intact());

  std::vector<float> outputs(static_cast<std::size_t>(rows * out));
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::uint8_t* source = y.data() + row * (out + kPadding) * 4;
    std::memcpy(outputs.data() + row * out, source, static_cast<std::size_t>(out) * 4);
    if (row + 1 == rows) continue;
    for (std::int64_t i = 0; i < kPadding * 4; ++i) EXPECT_EQ(source[out * 4 + i], 0xff) << "padding of y written";
  }
  return outputs;
}

std::vector<float> random_inputs(std::int64_t count, std::mt19937_64& random) {
  std::normal_distribution<float> normal(0.0f, 1.0f);
  std::vector<float> inputs(static_cast<std::size_t>(count));
  for (float& input : inputs) input = normal(random);
  return inputs;
}

void expect_product(const std::vector<float>& outputs, const std::vector<float>& inputs,
                    const std::vector<RandomPart>& parts, const WeightShape& shape, InputRounding rounding) {
  const std::int64_t in = shape.in_features;
  const std::int64_t out = shape.out_features;
  const std::int64_t rows = static_cast<std::int64_t>(inputs.size()) / in;
  const double eps = std::numeric_limits<float>::epsilon();
  double worst = 0.0;
  std::int64_t worst_row = 0;
  std::int64_t worst_column = 0;
  std::int64_t column = 0;
  // Largest |x| of each group of 128 inputs.
  const std::int64_t groups = (in + 127) / 128;
  std::vector<double> largest(static_cast<std::size_t>(rows * groups), 0.0);
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t k = 0; k < in; ++k) {
      double& group = largest[static_cast<std::size_t>(row * groups + k / 128)];
      group = std::max(group, std::abs(static_cast<double>(inputs[static_cast<std::size_t>(row * in + k)])));
    }
  }
  for (const RandomPart& part : parts) {
    for (std::int64_t part_row = 0; part_row < part.view().out_features; ++part_row, ++column) {
      std::vector<double> weights(static_cast<std::size_t>(in));
      std::vector<double> magnitudes(static_cast<std::size_t>(in));
      for (std::int64_t k = 0; k < in; ++k) {
        weights[static_cast<std::size_t>(k)] = part.weight(part_row, k);
        magnitudes[static_cast<std::size_t>(k)] = part.magnitude(part_row, k);
      }
      for (std::int64_t row = 0; row < rows; ++row) {
        double exact = 0.0;
        double sum = 0.0;
        double rounded = 0.0;
        for (std::int64_t k = 0; k < in; ++k) {
          const auto i = static_cast<std::size_t>(k);
          const double x = static_cast<double>(inputs[static_cast<std::size_t>(row * in + k)]);
          exact += x * weights[i];
          sum += std::abs(x) * magnitudes[i];
          if (rounding == InputRounding::bf16) rounded += std::abs(x) * magnitudes[i] / 256.0;
          if (rounding == InputRounding::int8)
            rounded += largest[static_cast<std::size_t>(row * groups + k / 128)] / 254.0 * std::abs(weights[i]);
        }
        const double allowed = (static_cast<double>(in) + 8.0) * eps * (sum + rounded) + rounded * 1.001 + 1e-30;
        const double error =
            std::abs(static_cast<double>(outputs[static_cast<std::size_t>(row * out + column)]) - exact);
        if (!(error / allowed <= worst)) {
          worst = std::isnan(error) ? std::numeric_limits<double>::infinity() : error / allowed;
          worst_row = row;
          worst_column = column;
        }
      }
    }
  }
  EXPECT_LE(worst, 1.0) << "worst at row " << worst_row << ", output " << worst_column << " of " << rows << " x " << out
                        << ", in_features " << in;
}

}  // namespace facet::test
