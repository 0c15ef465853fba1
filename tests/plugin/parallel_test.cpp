// The parallel loop: static pieces, every index once, no waiting for threads that are not there.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <mutex>
#include <random>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

#include "facet/base/error.h"
#include "facet/plugin/host_services.h"
#include "facet/sdk/host.h"
#include "plugin/worker_team.h"

namespace facet {
namespace {

struct Piece {
  std::int64_t begin, end;
  std::uint32_t worker;
  bool operator<(const Piece& other) const { return begin < other.begin; }
  bool operator==(const Piece& other) const {
    return begin == other.begin && end == other.end && worker == other.worker;
  }
};

std::vector<Piece> pieces_of(const sdk::Host& host, std::int64_t count, std::int64_t grain) {
  std::mutex mutex;
  std::vector<Piece> pieces;
  host.parallel_for(count, grain, [&](std::int64_t begin, std::int64_t end, std::uint32_t worker) {
    const std::lock_guard lock(mutex);
    pieces.push_back({begin, end, worker});
  });
  std::sort(pieces.begin(), pieces.end());
  return pieces;
}

TEST(SplitLoop, CoversEveryIndexInLegalPieces) {
  const std::uint32_t seed = 4711;
  std::mt19937_64 random(seed);
  for (int round = 0; round < 20000; ++round) {
    const auto count = static_cast<std::int64_t>(random() % (round % 2 == 0 ? 100 : 100000)) + 1;
    const auto grain = static_cast<std::int64_t>(random() % 70) - 1;
    const auto workers = static_cast<std::uint32_t>(random() % 17) + 1;
    const LoopPieces pieces = split_loop(count, grain, workers);
    ASSERT_GE(pieces.count, 1u);
    ASSERT_LE(pieces.count, workers) << count << " " << grain;
    ASSERT_GE(pieces.size * pieces.count, count);
    ASSERT_LT(pieces.size * (pieces.count - 1), count);
    if (pieces.count > 1) {
      ASSERT_EQ(pieces.size % std::max<std::int64_t>(grain, 1), 0) << "seed " << seed << " round " << round;
    }
  }
}

TEST(SplitLoop, ExtremesDoNotOverflow) {
  constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(split_loop(0, 1, 4).count, 0u);
  EXPECT_EQ(split_loop(-5, 1, 4).count, 0u);
  EXPECT_EQ(split_loop(10, kMax, 4).count, 1u);
  EXPECT_EQ(split_loop(kMax, 1, 1).count, 1u);
  EXPECT_EQ(split_loop(kMax, kMax - 1, 4).count, 2u);
  const LoopPieces pieces = split_loop(kMax, 1, 1024);
  EXPECT_EQ(pieces.count, 1024u);
}

TEST(ParallelFor, SamePiecesEveryTimeWhateverRunsThem) {
  for (const std::int64_t threads : {1, 2, 3, 8}) {
    HostServices services(threads, "auto");
    const sdk::Host host(services.table());
    for (const std::int64_t count : {0, 1, 2, 7, 64, 100, 1000}) {
      for (const std::int64_t grain : {1, 3, 64}) {
        const LoopPieces expected = split_loop(count, grain, static_cast<std::uint32_t>(threads));
        for (int round = 0; round < 20; ++round) {
          const std::vector<Piece> pieces = pieces_of(host, count, grain);
          ASSERT_EQ(pieces.size(), expected.count);
          for (std::uint32_t p = 0; p < expected.count; ++p) {
            const Piece wanted{p * expected.size, std::min(count, (p + 1) * expected.size), p};
            ASSERT_TRUE(pieces[p] == wanted) << threads << " threads, count " << count << ", grain " << grain;
          }
        }
      }
    }
  }
}

TEST(ParallelForDeathTest, OnePieceRunsOnTheCallerAndStartsNoThread) {
  // In a process of its own: workers of an earlier test may still be starting in this one.
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto one_piece = [] {
    const auto threads = [] {
      return std::distance(std::filesystem::directory_iterator("/proc/self/task"),
                           std::filesystem::directory_iterator{});
    };
    HostServices services(4, "auto");
    const sdk::Host host(services.table());
    const auto before = threads();
    std::thread::id ran;
    host.parallel_for(10, 100, [&](std::int64_t, std::int64_t, std::uint32_t) { ran = std::this_thread::get_id(); });
    const bool on_caller = ran == std::this_thread::get_id();
    fprintf(stderr, "on the caller: %d, threads %td before, %td after\n", on_caller, before, threads());
    std::_Exit(on_caller && threads() == before ? 0 : 1);
  };
  EXPECT_EXIT(one_piece(), ::testing::ExitedWithCode(0), "on the caller: 1");
}

TEST(ParallelFor, UsesSeveralThreads) {
  HostServices services(2, "auto");
  const sdk::Host host(services.table());
  std::mutex mutex;
  std::set<std::thread::id> ids;
  // The caller takes every piece that nobody began, so give the worker the time to begin.
  for (int round = 0; round < 2000 && ids.size() < 2; ++round) {
    host.parallel_for(2, 1, [&](std::int64_t, std::int64_t, std::uint32_t) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      const std::lock_guard lock(mutex);
      ids.insert(std::this_thread::get_id());
    });
  }
  EXPECT_EQ(ids.size(), 2u);
}

TEST(ParallelFor, ManyLoopsSumRight) {
  HostServices services(4, "auto");
  const sdk::Host host(services.table());
  const std::uint32_t seed = 99;
  std::mt19937 random(seed);
  std::vector<std::int64_t> values(5000);
  std::int64_t parts[4];
  for (int round = 0; round < 20000; ++round) {
    const std::int64_t count = random() % 5000 + 1;
    const std::int64_t grain = random() % 100 + 1;
    std::fill(std::begin(parts), std::end(parts), 0);
    for (int i = 0; i < 3; ++i) values[random() % 5000] = static_cast<std::int64_t>(random() % 1000);
    host.parallel_for(count, grain, [&](std::int64_t begin, std::int64_t end, std::uint32_t worker) {
      for (std::int64_t i = begin; i < end; ++i) parts[worker] += values[static_cast<std::size_t>(i)];
    });
    std::int64_t expected = 0;
    for (std::int64_t i = 0; i < count; ++i) expected += values[static_cast<std::size_t>(i)];
    ASSERT_EQ(parts[0] + parts[1] + parts[2] + parts[3], expected) << "seed " << seed << " round " << round;
    // Gaps longer than the spin, so that sleeping workers are woken too.
    if (round % 1000 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

TEST(ParallelFor, NestedLoopsRunInline) {
  HostServices services(2, "auto");
  const sdk::Host host(services.table());
  std::atomic<std::int64_t> sum{0};
  host.parallel_for(4, 1, [&](std::int64_t begin, std::int64_t end, std::uint32_t) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::thread::id outer = std::this_thread::get_id();
      host.parallel_for(10, 1, [&](std::int64_t from, std::int64_t to, std::uint32_t) {
        EXPECT_EQ(std::this_thread::get_id(), outer);
        sum += to - from;
      });
    }
  });
  EXPECT_EQ(sum, 40);
}

TEST(ParallelFor, SeveralCallersAndSeveralHostsAtOnce) {
  HostServices one(2, "auto"), two(8, "auto");
  std::atomic<std::int64_t> sum{0};
  std::vector<std::thread> callers;
  for (int t = 0; t < 4; ++t) {
    callers.emplace_back([&, t] {
      const sdk::Host host(t % 2 == 0 ? one.table() : two.table());
      for (int round = 0; round < 500; ++round)
        host.parallel_for(100, 1, [&](std::int64_t begin, std::int64_t end, std::uint32_t) { sum += end - begin; });
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(sum, 4 * 500 * 100);
}

TEST(ParallelFor, ExceptionOfABodyReachesTheCaller) {
  HostServices services(2, "auto");
  const sdk::Host host(services.table());
  for (std::int64_t thrower = 0; thrower < 2; ++thrower) {
    std::atomic<int> finished{0};
    EXPECT_THROW(host.parallel_for(2, 1,
                                   [&](std::int64_t begin, std::int64_t, std::uint32_t) {
                                     if (begin == thrower) throw std::runtime_error("body");
                                     ++finished;
                                   }),
                 std::runtime_error);
    EXPECT_EQ(finished, 1);
  }
  EXPECT_EQ(pieces_of(host, 2, 1).size(), 2u);
}

TEST(ParallelFor, HostsComeAndGo) {
  const auto threads = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/task"), std::filesystem::directory_iterator{});
  };
  std::ptrdiff_t steady = 0;
  for (int round = 0; round < 200; ++round) {
    HostServices services(2, "auto");
    EXPECT_EQ(pieces_of(sdk::Host(services.table()), 100, 1).size(), 2u);
    if (round == 1) steady = threads();
  }
  EXPECT_LE(threads(), steady + 1);
}

TEST(ParallelForDeathTest, TeamsThatEndBeforeTheirThreadsBeginHoldNothing) {
  // In a process of its own, since the address sanitizer looks for lost memory when a process ends: threads are still
  // starting then, so what their tasks hold would be lost.
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto short_lives = [] {
    std::int64_t sum = 0;
    for (int round = 0; round < 20; ++round) {
      HostServices services(8, "auto");
      std::atomic<std::int64_t> indices{0};
      sdk::Host(services.table()).parallel_for(8, 1, [&](std::int64_t begin, std::int64_t end, std::uint32_t) {
        indices += end - begin;
      });
      sum += indices;
    }
    fprintf(stderr, "%d indices\n", static_cast<int>(sum));
    std::exit(sum == 160 ? 0 : 1);
  };
  EXPECT_EXIT(short_lives(), ::testing::ExitedWithCode(0), "160 indices");
}

TEST(ParallelForDeathTest, ThreadsThatTheSystemRefusesAreAnErrorAndNoAbort) {
  // In a process of its own, which no longer belongs to root: no limit counts for that user.
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto without_threads = [] {
    constexpr uid_t kNobody = 65534;
    const rlimit none{1, 1};
    if ((getuid() == 0 && setuid(kNobody) != 0) || setrlimit(RLIMIT_NPROC, &none) != 0) std::_Exit(2);
    try {
      HostServices services(16, "auto");
      pieces_of(sdk::Host(services.table()), 16, 1);
    } catch (const Error& error) {
      fprintf(stderr, "%s\n", error.what());
      std::_Exit(error.kind() == ErrorKind::run ? 0 : 1);
    }
    std::_Exit(3);
  };
  EXPECT_EXIT(without_threads(), ::testing::ExitedWithCode(0),
              "15 are needed.* gives 0 .*engine.threads.* at most 1.*ulimit -u");
}

}  // namespace
}  // namespace facet
