// Processor features, memory with its account, log.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <fstream>
#include <random>
#include <thread>
#include <vector>

#include "facet/base/error.h"
#include "facet/base/log.h"
#include "facet/plugin/host_services.h"

namespace facet {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string config_error(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::config);
    return error.message();
  }
  ADD_FAILURE() << "nothing was thrown";
  return "";
}

// Words of the first "flags" line of /proc/cpuinfo: the kernel's own view.
bool kernel_says(const std::string& flag) {
  std::ifstream in("/proc/cpuinfo");
  for (std::string line; std::getline(in, line);) {
    if (line.rfind("flags", 0) == 0) return (line + " ").find(" " + flag + " ") != std::string::npos;
  }
  return false;
}

TEST(CpuFeatures, AgreeWithTheKernel) {
  const std::uint64_t features = detect_cpu_features("auto");
  const bool avx2 = kernel_says("avx2") && kernel_says("fma") && kernel_says("f16c");
  const bool avx512 =
      avx2 && kernel_says("avx512f") && kernel_says("avx512bw") && kernel_says("avx512dq") && kernel_says("avx512vl");
  EXPECT_EQ((features & abi::kCpuAvx2) != 0, avx2);
  EXPECT_EQ((features & abi::kCpuAvx512) != 0, avx512);
  EXPECT_EQ((features & abi::kCpuAvx512Vnni) != 0, avx512 && kernel_says("avx512_vnni"));
  EXPECT_EQ((features & abi::kCpuAvx512Bf16) != 0, avx512 && kernel_says("avx512_bf16"));
}

TEST(CpuFeatures, AreMasked) {
  EXPECT_EQ(detect_cpu_features("generic"), 0u);
  const std::uint64_t all = detect_cpu_features("auto");
  if ((all & abi::kCpuAvx2) != 0) {
    EXPECT_EQ(detect_cpu_features("avx2"), std::uint64_t{abi::kCpuAvx2});
  } else {
    EXPECT_THAT(config_error([] { detect_cpu_features("avx2"); }), HasSubstr("generic"));
  }
  if ((all & abi::kCpuAvx512) != 0) {
    EXPECT_EQ(detect_cpu_features("avx512"), all);
  } else {
    EXPECT_THAT(config_error([] { detect_cpu_features("avx512"); }), AllOf(HasSubstr("'avx512'"), HasSubstr("'auto'")));
  }
  EXPECT_THAT(config_error([] { detect_cpu_features("avx513"); }),
              AllOf(HasSubstr("engine.cpu_isa is 'avx513'"), HasSubstr("did you mean 'avx512'?")));
}

TEST(CpuFeatures, HaveNames) {
  EXPECT_EQ(describe_cpu_features(0), "generic");
  EXPECT_EQ(describe_cpu_features(abi::kCpuAvx2 | abi::kCpuAvx512 | abi::kCpuAvx512Vnni | abi::kCpuAvx512Bf16),
            "avx2 avx512 avx512_vnni avx512_bf16");
}

TEST(HostServices, TableIsComplete) {
  HostServices host(3, "generic");
  const abi::HostTable* table = host.table();
  EXPECT_EQ(table->size, sizeof *table);
  EXPECT_EQ(table->contract_version, abi::kContractVersion);
  EXPECT_EQ(table->cpu_features, 0u);
  EXPECT_EQ(table->worker_count, 3u);
  EXPECT_NE(table->log, nullptr);
  EXPECT_GE(HostServices(0, "auto").table()->worker_count, 1u);
}

TEST(HostServices, RefusesImpossibleThreadCounts) {
  EXPECT_THAT(config_error([] { HostServices(-1, "auto"); }),
              AllOf(HasSubstr("engine.threads is -1"), HasSubstr("0 (all)")));
  EXPECT_THAT(config_error([] { HostServices(5000, "auto"); }), AllOf(HasSubstr("5000"), HasSubstr("1024")));
}

TEST(HostServices, LogRespectsTheLevel) {
  HostServices host(1, "auto");
  const abi::HostTable* table = host.table();
  set_log_level(LogLevel::warn);
  ::testing::internal::CaptureStderr();
  table->log(table->context, abi::LogLevel::debug, "quiet words", 11);
  table->log(table->context, abi::LogLevel::error, "loud words and more", 10);
  const std::string text = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(
      text, AllOf(HasSubstr("loud words"), ::testing::Not(HasSubstr("and more")), ::testing::Not(HasSubstr("quiet"))));
}

class MemoryTest : public ::testing::TestWithParam<std::uint64_t> {};

TEST_P(MemoryTest, IsZeroAlignedAndCounted) {
  const std::uint64_t bytes = GetParam();
  HostServices host(1, "auto");
  for (const std::uint64_t alignment : {0u, 1u, 64u, 4096u, 65536u, 4194304u}) {
    auto* memory = static_cast<unsigned char*>(host.allocate(bytes, alignment, "weights"));
    ASSERT_NE(memory, nullptr);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory) % std::max<std::uint64_t>(alignment, 64), 0u) << alignment;
    for (std::uint64_t i = 0; i < bytes; ++i) {
      if (memory[i] != 0) FAIL() << "byte " << i << " of " << bytes;
    }
    std::memset(memory, 0xff, bytes);  // a block that comes back must be zero again
    EXPECT_EQ(host.accounts().at(0).bytes, bytes);
    host.deallocate(memory, bytes);
    EXPECT_EQ(host.accounts().at(0).bytes, 0u);
  }
  EXPECT_EQ(host.accounts().at(0).tag, "weights");
  EXPECT_EQ(host.accounts().at(0).peak_bytes, bytes);
}

INSTANTIATE_TEST_SUITE_P(Sizes, MemoryTest,
                         ::testing::Values(0, 1, 63, 64, 65, 4096, 262143, 262144, 262145, 4194303, 4194304, 9000001));

TEST(HostMemory, AccountsByTag) {
  HostServices host(1, "auto");
  const abi::HostTable* table = host.table();
  const std::string other_weights = "weights";  // the same tag at another address
  void* a = table->allocate(table->context, 100, 64, "weights");
  void* b = table->allocate(table->context, 5000000, 64, other_weights.c_str());
  void* c = host.allocate(7, 8, "workspace");
  table->deallocate(table->context, b, 5000000);
  ASSERT_EQ(host.accounts().size(), 2u);
  EXPECT_EQ(host.accounts()[0].bytes, 100u);
  EXPECT_EQ(host.accounts()[0].peak_bytes, 5000100u);
  EXPECT_EQ(host.accounts()[1].tag, "workspace");
  table->deallocate(table->context, a, 100);
  host.deallocate(c, 7);
  table->deallocate(table->context, nullptr, 0);
}

TEST(HostMemory, WrongReturnsAreLoggedAndHarmless) {
  HostServices host(1, "auto");
  set_log_level(LogLevel::warn);
  void* block = host.allocate(100, 64, "odd");
  int local = 0;
  ::testing::internal::CaptureStderr();
  host.deallocate(&local, 4);
  host.deallocate(block, 99);
  const std::string text = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(text, AllOf(HasSubstr("not from this host"), HasSubstr("99 bytes given back of a block of 100 ('odd')")));
  EXPECT_EQ(host.accounts()[0].bytes, 0u);
}

TEST(HostMemory, ImpossibleRequestsAreErrorsNotCrashes) {
  HostServices host(1, "auto");
  const abi::HostTable* table = host.table();
  EXPECT_EQ(table->allocate(table->context, 100, 48, "odd"), nullptr);
  EXPECT_EQ(table->allocate(table->context, ~std::uint64_t{0}, 64, "huge"), nullptr);
  try {
    // All of the user's address space: refused also where the kernel grants every request that has room (overcommit 1).
    host.allocate(std::uint64_t{1} << 47, 64, "kv_cache");
    FAIL() << "128 TiB were given";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::run);
    EXPECT_THAT(error.message(), AllOf(HasSubstr("'kv_cache'"), HasSubstr("140737488355328 bytes")));
  }
  EXPECT_TRUE(host.accounts().empty());
}

// A pool that is planned for the worst case must not cost what is not touched.
TEST(HostMemory, LargeZeroPagesCostNothing) {
  const auto resident_kib = [] {
    std::ifstream in("/proc/self/status");
    for (std::string line; std::getline(in, line);) {
      if (line.rfind("VmRSS:", 0) == 0) return std::stol(line.substr(6));
    }
    return -1L;
  };
  HostServices host(1, "auto");
  const long before = resident_kib();
  ASSERT_GT(before, 0);
  void* block = host.allocate(std::uint64_t{1} << 30, 64, "kv_cache");
  EXPECT_LT(resident_kib() - before, 64 * 1024);
  host.deallocate(block, std::uint64_t{1} << 30);
}

TEST(HostMemory, ManyThreadsAtOnce) {
  HostServices host(2, "auto");
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 4; ++t) {
    threads.emplace_back([&host, t] {
      std::mt19937 random(t);
      for (int round = 0; round < 300; ++round) {
        const std::uint64_t bytes = random() % 300000;
        void* block = host.allocate(bytes, 64, t % 2 == 0 ? "even" : "odd");
        std::memset(block, static_cast<int>(t), bytes);
        host.deallocate(block, bytes);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const MemoryAccount& account : host.accounts()) EXPECT_EQ(account.bytes, 0u) << account.tag;
}

}  // namespace
}  // namespace facet
