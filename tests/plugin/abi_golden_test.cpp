// The layout of the contract is frozen: a change here is a change of every plugin ever built.
#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "facet/abi/layout.h"

namespace facet {
namespace {

// One line for each field, size and method, as tests/plugin/abi_golden.txt has them.
std::string layout_text() {
  std::string text;
  for (const abi::detail::LayoutField& field : abi::detail::kLayout)
    text += std::string(field.name) + " " + std::to_string(field.offset) + "\n";
  return text;
}

constexpr const char* kAdvice =
    "The contract changed. If that is meant: raise kContractVersion or the interface version, say it in section 10 of "
    "framework/README.md, and write what this test prints into tests/plugin/abi_golden.txt and kGoldenHash.";

constexpr std::uint64_t kGoldenHash = 0x2c02e2de2da9e9dfull;

TEST(AbiGolden, Hash) {
  EXPECT_EQ(abi::kLayoutHash, kGoldenHash) << kAdvice;
}

TEST(AbiGolden, Table) {
  std::ifstream in(FACET_SOURCE_DIR "/tests/plugin/abi_golden.txt");
  const std::string golden(std::istreambuf_iterator<char>(in), {});
  EXPECT_EQ(layout_text(), golden) << kAdvice;
}

TEST(AbiGolden, Versions) {
  EXPECT_EQ(abi::kContractVersion, 0u);
  EXPECT_EQ(abi::kLinearInterfaceVersion, 1u);
  EXPECT_EQ(abi::kAttentionInterfaceVersion, 3u);
  EXPECT_EQ(abi::kKvCacheInterfaceVersion, 2u);
  EXPECT_EQ(abi::kSchedulerInterfaceVersion, 0u);
  EXPECT_STREQ(abi::kEntrySymbol, "facet_plugin_v0");
  EXPECT_STREQ(abi::kStampSection, ".facet.stamp");
  EXPECT_STREQ(abi::kStampMagic, "facet-plugin-stamp;");
}

}  // namespace
}  // namespace facet
