// The CUDA plugins of this product, which a build without a CUDA toolkit lacks.
#pragma once

#include <string_view>

#include "facet/abi/plugin.h"

namespace facet {

// Whether one of them has that kind and name, in every build.
bool is_cuda_plugin(abi::PluginKind kind, std::string_view name);
// Whether this build has them.
bool built_with_cuda() noexcept;
// What to do where it has not.
inline constexpr std::string_view kCudaBuildCure =
    "install a CUDA toolkit (nvcc on the PATH or in /usr/local/cuda), configure and build again";
// What to do where no GPU can be used.
inline constexpr std::string_view kCpuCure = "use a configuration for the CPU, such as configs/default.toml";

}  // namespace facet
