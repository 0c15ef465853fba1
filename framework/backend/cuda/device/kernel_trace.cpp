#include "device/kernel_trace.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "facet/sdk/text.h"

#if __has_include(<cupti.h>)
#include <cupti.h>

namespace facet::cuda {
namespace {

struct Kernel {
  std::string name;
  std::uint64_t start, end;  // ns
  bool recorded;
};

constexpr std::size_t kBufferBytes = std::size_t{4} << 20;

struct Cupti {
  decltype(&cuptiActivityRegisterCallbacks) register_callbacks = nullptr;
  decltype(&cuptiActivityEnable) enable = nullptr;
  decltype(&cuptiActivityDisable) disable = nullptr;
  decltype(&cuptiActivityFlushAll) flush = nullptr;
  decltype(&cuptiActivityGetNextRecord) next = nullptr;
  std::string error;
  std::vector<Kernel> kernels;
};

Cupti& cupti();

void CUPTIAPI give_buffer(std::uint8_t** buffer, std::size_t* size, std::size_t* max_records) {
  *buffer = static_cast<std::uint8_t*>(std::aligned_alloc(ACTIVITY_RECORD_ALIGNMENT, kBufferBytes));
  *size = *buffer == nullptr ? 0 : kBufferBytes;
  *max_records = 0;
}

void CUPTIAPI take_buffer(CUcontext, std::uint32_t, std::uint8_t* buffer, std::size_t, std::size_t valid) {
  CUpti_Activity* record = nullptr;
  while (cupti().next(buffer, valid, &record) == CUPTI_SUCCESS) {
    if (record->kind != CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) continue;
    const auto* kernel = reinterpret_cast<const CUpti_ActivityKernel10*>(record);
    cupti().kernels.push_back({kernel->name, kernel->start, kernel->end, kernel->graphNodeId != 0});
  }
  std::free(buffer);
}

template <typename Function>
void find(void* library, const char* name, Function& function, std::string& error) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  if (function == nullptr) error = sdk::concat("it has no function ", name);
}

Cupti load() {
  Cupti loaded;
  // The library's major version is the toolkit's.
  const std::string name = sdk::concat("libcupti.so.", CUPTI_API_VERSION / 10000);
  void* library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* reason = dlerror();
    loaded.error = reason != nullptr ? reason : name;
    return loaded;
  }
  find(library, "cuptiActivityRegisterCallbacks", loaded.register_callbacks, loaded.error);
  find(library, "cuptiActivityEnable", loaded.enable, loaded.error);
  find(library, "cuptiActivityDisable", loaded.disable, loaded.error);
  find(library, "cuptiActivityFlushAll", loaded.flush, loaded.error);
  find(library, "cuptiActivityGetNextRecord", loaded.next, loaded.error);
  return loaded;
}

Cupti& cupti() {
  static Cupti library = load();
  return library;
}

abi::Status check(CUptiResult result, const char* what, abi::TextSink error) {
  if (result == CUPTI_SUCCESS) return abi::Status::ok;
  sdk::write_line(error, sdk::concat(what, " failed with code ", static_cast<int>(result)));
  return abi::Status::failed;
}

}  // namespace

abi::Status begin_kernel_trace(abi::TextSink error) noexcept try {
  Cupti& library = cupti();
  if (!library.error.empty()) {
    sdk::write_line(
        error, sdk::concat("CUPTI is missing: ", library.error, "; install it or name its folder in LD_LIBRARY_PATH"));
    return abi::Status::unavailable;
  }
  library.kernels.clear();
  const abi::Status registered =
      check(library.register_callbacks(give_buffer, take_buffer), "cuptiActivityRegisterCallbacks", error);
  if (registered != abi::Status::ok) return registered;
  return check(library.enable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL), "cuptiActivityEnable", error);
} catch (...) {
  return abi::Status::out_of_memory;
}

abi::Status end_kernel_trace(NoteKernel note, void* context, abi::TextSink error) noexcept try {
  Cupti& library = cupti();
  const abi::Status flushed = check(library.flush(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED), "cuptiActivityFlushAll", error);
  const abi::Status disabled =
      check(library.disable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL), "cuptiActivityDisable", error);
  std::sort(library.kernels.begin(), library.kernels.end(),
            [](const Kernel& a, const Kernel& b) { return a.end < b.end; });
  for (const Kernel& kernel : library.kernels)
    note(context, kernel.name.c_str(), kernel.start, kernel.end, kernel.recorded);
  library.kernels.clear();
  return flushed != abi::Status::ok ? flushed : disabled;
} catch (...) {
  return abi::Status::out_of_memory;
}

}  // namespace facet::cuda

#else

namespace facet::cuda {

abi::Status begin_kernel_trace(abi::TextSink error) noexcept {
  sdk::write_line(error, "this build was made without cupti.h, which comes with the CUDA toolkit");
  return abi::Status::unavailable;
}

abi::Status end_kernel_trace(NoteKernel, void*, abi::TextSink error) noexcept {
  return begin_kernel_trace(error);
}

}  // namespace facet::cuda

#endif
