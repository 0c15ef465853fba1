#include <algorithm>
#include <string>
#include <vector>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "facet/base/error.h"
#include "facet/base/text.h"
#include "facet/plugin/host_services.h"

namespace facet {

namespace {

// Everything this processor has and the operating system saves on a context switch (__builtin_cpu_supports asks
// xgetbv).
std::uint64_t all_features() {
  std::uint64_t features = 0;
#if defined(__x86_64__)
  unsigned a = 0, b = 0, c = 0, d = 0;
  const bool f16c = __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & (1u << 29)) != 0;
  __builtin_cpu_init();
  if (f16c && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) features |= abi::kCpuAvx2;
  if ((features & abi::kCpuAvx2) != 0 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
    features |= abi::kCpuAvx512;
    if (__builtin_cpu_supports("avx512vnni")) features |= abi::kCpuAvx512Vnni;
    if (__builtin_cpu_supports("avx512bf16")) features |= abi::kCpuAvx512Bf16;
  }
#endif
  return features;
}

}  // namespace

std::uint64_t detect_cpu_features(const std::string& isa) {
  const std::uint64_t found = all_features();
  std::uint64_t needed = 0;
  std::uint64_t mask = ~std::uint64_t{0};
  if (isa == "avx512") {
    needed = abi::kCpuAvx2 | abi::kCpuAvx512;
  } else if (isa == "avx2") {
    needed = mask = abi::kCpuAvx2;
  } else if (isa == "generic") {
    mask = 0;
  } else if (isa != "auto") {
    const std::string nearest = nearest_name(isa, {"auto", "avx512", "avx2", "generic"});
    throw_error(ErrorKind::config, "engine.cpu_isa is '{}', known are auto, avx512, avx2 and generic{}", isa,
                nearest.empty() ? "" : fmt::format("; did you mean '{}'?", nearest));
  }
  if ((found & needed) != needed)
    throw_error(ErrorKind::config, "engine.cpu_isa is '{}', this processor has {}; write 'auto'", isa,
                describe_cpu_features(found));
  return found & mask;
}

std::string describe_cpu_features(std::uint64_t features) {
  std::string text;
  const auto add = [&](std::uint64_t bit, const char* name) {
    if ((features & bit) == 0) return;
    if (!text.empty()) text += ' ';
    text += name;
  };
  add(abi::kCpuAvx2, "avx2");
  add(abi::kCpuAvx512, "avx512");
  add(abi::kCpuAvx512Vnni, "avx512_vnni");
  add(abi::kCpuAvx512Bf16, "avx512_bf16");
  return text.empty() ? "generic" : text;
}

}  // namespace facet
