// How a kernel compiled as host code is launched.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <memory>
#include <tuple>

namespace facet::emulated {

// `kernel` names it, `call` runs it with its arguments.
cudaError_t launch(const cudaLaunchConfig_t& config, const void* kernel, const std::function<void()>& call);

}  // namespace facet::emulated

// What nvcc's own headers declare for device code.
template <typename... Parameters, typename... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               Arguments&&... arguments) {
  const auto values = std::make_shared<const std::tuple<Parameters...>>(std::forward<Arguments>(arguments)...);
  return facet::emulated::launch(*config, reinterpret_cast<const void*>(kernel),
                                 [kernel, values] { std::apply(kernel, *values); });
}

template <typename... Parameters>
cudaError_t cudaOccupancyMaxActiveClusters(int* clusters, void (*kernel)(Parameters...),
                                           const cudaLaunchConfig_t* config) {
  return cudaOccupancyMaxActiveClusters(clusters, reinterpret_cast<const void*>(kernel), config);
}
