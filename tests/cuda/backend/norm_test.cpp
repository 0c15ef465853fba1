// Norms of the CUDA backend, of few rows and of many.
#include "cuda_backend_fixture.h"

namespace facet {
namespace {

TEST_F(CudaBackendTest, Norms) {
  using Size = std::pair<std::int64_t, std::int64_t>;  // few tokens and many take other kernels
  for (const auto& [width, tokens] :
       {Size{96, 5}, {384, 5}, {3840, 5}, {9001, 5}, {96, 600}, {3840, 600}, {4100, 600}}) {
    const auto count = static_cast<std::size_t>(tokens * width);
    const std::vector<float> hidden = numbers(count, 50), update = numbers(count, 3),
                             post = numbers(static_cast<std::size_t>(width)),
                             next = numbers(static_cast<std::size_t>(width));
    std::vector<float> right_hidden(count, kNan), right(count, kNan);
    ResidualInput input{hidden.data(),       update.data(), post.data(), 0.75f, next.data(),
                        right_hidden.data(), right.data(),  tokens,      width, 1e-6f};
    cpu_->residual_norm(input);
    auto* hidden_out = on_gpu(std::vector<float>(count, kNan));
    auto* normed = bf16_on_gpu(std::vector<float>(count, kNan));
    input.hidden = on_gpu(hidden);
    input.update = bf16_on_gpu(update);
    input.post_norm = on_gpu(post);
    input.next_norm = on_gpu(next);
    input.hidden_out = hidden_out;
    input.normed = normed;
    gpu_->residual_norm(input);
    expect_near(back(hidden_out, count), right_hidden, 1e-5, 1e-4);
    expect_near(bf16_back(normed, count), right, kBf16, 1e-5);

    cpu_->rms_norm(hidden.data(), post.data(), 1e-6f, tokens, width, right.data());
    auto* only = bf16_on_gpu(std::vector<float>(count, kNan));
    gpu_->rms_norm(on_gpu(hidden), on_gpu(post), 1e-6f, tokens, width, only);
    expect_near(bf16_back(only, count), right, kBf16, 1e-5);
  }
}

// What is left of a stream that the update all but cancels is normalised as exactly as any other.
TEST_F(CudaBackendTest, NormOfWhatAnUpdateLeaves) {
  constexpr std::int64_t kTokens = 3, kWidth = 3840;
  constexpr double kLeft = 0.004;  // beside a stream of about 1
  constexpr float kEpsilon = 1e-6f;
  const std::vector<float> update = numbers(kTokens * kWidth, 3), post = numbers(kWidth), next = numbers(kWidth),
                           noise = numbers(kTokens * kWidth, static_cast<float>(kLeft));
  std::vector<float> hidden(kTokens * kWidth), right(kTokens * kWidth);
  for (std::int64_t token = 0; token < kTokens; ++token) {
    const auto at = [&](std::int64_t i) { return static_cast<std::size_t>(token * kWidth + i); };
    const auto factor = [](double squares) { return 1 / std::sqrt(squares / kWidth + static_cast<double>(kEpsilon)); };
    double squares = 0, left = 0;
    for (std::int64_t i = 0; i < kWidth; ++i) squares += std::pow(static_cast<double>(update[at(i)]), 2);
    std::vector<double> sum(kWidth);
    for (std::int64_t i = 0; i < kWidth; ++i) {
      const auto channel = static_cast<std::size_t>(i);
      const double change = static_cast<double>(update[at(i)]) * static_cast<double>(post[channel]) * factor(squares);
      hidden[at(i)] = static_cast<float>(static_cast<double>(noise[at(i)]) - change);
      sum[channel] = static_cast<double>(hidden[at(i)]) + change;
      left += sum[channel] * sum[channel];
    }
    for (std::int64_t i = 0; i < kWidth; ++i) {
      const auto channel = static_cast<std::size_t>(i);
      right[at(i)] = static_cast<float>(sum[channel] * factor(left) * static_cast<double>(next[channel]));
    }
  }
  auto* normed = bf16_on_gpu(std::vector<float>(right.size(), kNan));
  ResidualInput input{on_gpu(hidden), bf16_on_gpu(update),
                      on_gpu(post),   1.0f,
                      on_gpu(next),   on_gpu(std::vector<float>(right.size(), kNan)),
                      normed,         kTokens,
                      kWidth,         kEpsilon};
  gpu_->residual_norm(input);
  // An element is off by roundings of terms of up to some 16, a few in 2^24 each, beside kLeft; next is below 5.
  expect_near(bf16_back(normed, right.size()), right, kBf16, 5 * 4 * 16 * 0x1p-24 / kLeft);
}

}  // namespace
}  // namespace facet
