// The plugins and options that the tests go through.
#pragma once

#include <gtest/gtest.h>

#include "guarded_run.h"

namespace facet::test {

struct Variant {
  std::string plugin;
  std::map<std::string, std::string> options;
  InputRounding rounding;
  std::vector<abi::WeightFormat> formats;
};

inline const std::vector<Variant>& variants() {
  using abi::WeightFormat;
  const std::vector<WeightFormat> integers{WeightFormat::int8, WeightFormat::int4};
  static const std::vector<Variant> all{
      {"reference", {}, InputRounding::fp32, {WeightFormat::bf16, WeightFormat::int8, WeightFormat::int4}},
      {"dense", {}, InputRounding::fp32, {WeightFormat::bf16}},
      {"dense", {{"activations", "bf16"}}, InputRounding::bf16, {WeightFormat::bf16}},
      {"w4a16", {}, InputRounding::fp32, integers},
      {"w4a16", {{"activations", "bf16"}}, InputRounding::bf16, integers},
      {"w4a8", {}, InputRounding::int8, integers},
      {"dequant_gemm", {}, InputRounding::bf16, integers},
      {"dequant_gemm", {{"tile", "fp32"}}, InputRounding::fp32, integers},
  };
  return all;
}

// One test for each variant and instruction set.
using VariantIsa = std::tuple<std::size_t, std::size_t>;

inline std::string variant_isa_name(const testing::TestParamInfo<VariantIsa>& info) {
  const Variant& variant = variants()[std::get<0>(info.param)];
  std::string name = variant.plugin;
  for (const auto& [key, value] : variant.options) name += "_" + value;
  return name + "_" + isa_levels()[std::get<1>(info.param)].first;
}

class VariantIsaTest : public testing::TestWithParam<VariantIsa> {
 protected:
  const Variant& variant() const { return variants()[std::get<0>(GetParam())]; }
  std::uint64_t features() const { return isa_levels()[std::get<1>(GetParam())].second; }
};

#define FACET_INSTANTIATE_VARIANTS(Suite)                                                         \
  INSTANTIATE_TEST_SUITE_P(All, Suite,                                                            \
                           testing::Combine(testing::Range<std::size_t>(0, variants().size()),    \
                                            testing::Range<std::size_t>(0, isa_levels().size())), \
                           variant_isa_name)

}  // namespace facet::test
