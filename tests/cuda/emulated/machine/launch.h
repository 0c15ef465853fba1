// How a kernel compiled as host code is launched.
#pragma once

#include <cuda_runtime_api.h>

#include <cstring>
#include <functional>
#include <memory>
#include <tuple>
#include <vector>

#include "machine.h"

namespace facet::emulated {

// `kernel` names it, `call` runs it with its arguments; `argument` is the first of them.
cudaError_t launch(const cudaLaunchConfig_t& config, const void* kernel, const std::function<void()>& call,
                   const void* argument, std::size_t argument_bytes);

// The last launch, and a copy of its kernel's first argument.
struct LastLaunch {
  Launch launch;
  std::vector<unsigned char> argument;
};
const LastLaunch& last_launch();

template <typename Args>
Args last_argument() {
  Args args;
  if (last_launch().argument.size() != sizeof args) throw Fault("the last launch was of another kernel");
  std::memcpy(&args, last_launch().argument.data(), sizeof args);
  return args;
}

}  // namespace facet::emulated

// What nvcc's own headers declare for device code.
template <typename... Parameters, typename... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               Arguments&&... arguments) {
  const auto values = std::make_shared<const std::tuple<Parameters...>>(std::forward<Arguments>(arguments)...);
  const auto& first = std::get<0>(*values);
  return facet::emulated::launch(
      *config, reinterpret_cast<const void*>(kernel), [kernel, values] { std::apply(kernel, *values); }, &first,
      sizeof first);
}

template <typename... Parameters>
cudaError_t cudaFuncSetAttribute(void (*kernel)(Parameters...), cudaFuncAttribute name, int value) {
  return cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), name, value);
}

template <typename... Parameters>
cudaError_t cudaOccupancyMaxActiveClusters(int* clusters, void (*kernel)(Parameters...),
                                           const cudaLaunchConfig_t* config) {
  return cudaOccupancyMaxActiveClusters(clusters, reinterpret_cast<const void*>(kernel), config);
}
