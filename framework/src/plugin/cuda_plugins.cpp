#include "facet/plugin/cuda_plugins.h"

#include "facet/base/error.h"
#include "facet/plugin/registry.h"

namespace facet {

bool is_cuda_plugin(abi::PluginKind kind, std::string_view name) {
  // "linear_w4a16_stream attention_flash_cuda", with a space at both ends so that only whole names are found.
  constexpr std::string_view kNames = " " FACET_CUDA_PLUGINS " ";
  return kNames.find(fmt::format(" {}_{} ", to_string(kind), name)) != std::string_view::npos;
}

bool built_with_cuda() noexcept {
#ifdef FACET_HAS_CUDA
  return true;
#else
  return false;
#endif
}

}  // namespace facet
