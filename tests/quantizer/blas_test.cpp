// Products from many threads at once: a BLAS that shares buffers between threads gives a wrong block now and then.
#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "facet/quantizer/blas.h"

namespace facet::quantizer {
namespace {

TEST(Blas, MayBeCalledFromManyThreads) {
  const Blas blas;
  constexpr int kThreads = 16, kCalls = 500;
  std::vector<int> wrong(kThreads, 0);
  std::vector<std::thread> threads;
  for (int id = 0; id < kThreads; ++id) {
    threads.emplace_back([&, id] {
      const std::int64_t m = 17 + id, n = 65 + 3 * id, k = 90 + 11 * id;
      // Small whole numbers: sums are exact.
      const std::vector<float> a(static_cast<std::size_t>(m * k), static_cast<float>(id + 1));
      const std::vector<float> b(static_cast<std::size_t>(n * k), 2.0f);
      std::vector<float> out(static_cast<std::size_t>(m * n));
      for (int call = 0; call < kCalls; ++call) {
        blas.multiply_transposed(m, n, k, {a.data(), k}, {b.data(), k}, {out.data(), n});
        for (const float value : out)
          wrong[static_cast<std::size_t>(id)] += value == static_cast<float>(2 * (id + 1) * k) ? 0 : 1;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int id = 0; id < kThreads; ++id) EXPECT_EQ(wrong[static_cast<std::size_t>(id)], 0) << "thread " << id;
  EXPECT_GT(blas.nanoseconds(), 0);
}

}  // namespace
}  // namespace facet::quantizer
