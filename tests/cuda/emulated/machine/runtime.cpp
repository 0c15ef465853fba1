// The part of the CUDA runtime that the plugins and their tests call, on the host's own memory.
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <vector>

#include "launch.h"
#include "machine.h"
#include "tensor_map.h"

namespace facet::emulated {

namespace {

using Kernel = std::function<void()>;

struct Recorded {
  Launch launch;
  Kernel kernel;
};
// A graph, as what it is made of and what runs.
struct Graph {
  std::vector<Recorded> launches;
};
struct Stream {
  Graph* recording = nullptr;
};

std::string last_fault;
LastLaunch last;
// What a kernel is allowed.
struct Limits {
  std::uint32_t shared = 48 << 10;  // dynamic
  unsigned cluster = 8;
};
std::map<const void*, Limits> limits;
constexpr unsigned kLargestCluster = 16;

unsigned cluster_of(const cudaLaunchConfig_t& config, unsigned otherwise) {
  for (unsigned i = 0; i < config.numAttrs; ++i) {
    if (config.attrs[i].id == cudaLaunchAttributeClusterDimension) return config.attrs[i].val.clusterDim.x;
  }
  return otherwise;
}

cudaError_t run_now(const Launch& launch, const Kernel& kernel) {
  try {
    run(launch, kernel);
    return cudaSuccess;
  } catch (const Fault& fault) {
    last_fault = fault.what();
    return cudaErrorLaunchFailure;
  }
}

CUresult encode_tensor_map(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t dimensions, void* data,
                           const cuuint64_t* sizes, const cuuint64_t* strides, const cuuint32_t* box,
                           const cuuint32_t* steps, CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                           CUtensorMapL2promotion, CUtensorMapFloatOOBfill fill) {
  bool known = type == CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 && interleave == CU_TENSOR_MAP_INTERLEAVE_NONE &&
               swizzle == CU_TENSOR_MAP_SWIZZLE_128B && fill == CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE && dimensions >= 2 &&
               dimensions <= 5 && reinterpret_cast<std::uintptr_t>(data) % 16 == 0;
  if (!known) return CUDA_ERROR_INVALID_VALUE;
  TensorMap made;
  made.mark = kTensorMapMark;
  made.data = static_cast<const unsigned char*>(data);
  made.dimensions = dimensions;
  known = box[0] == 64;  // rows of 128 bytes
  for (cuuint32_t i = 0; i < dimensions; ++i) {
    known =
        known && sizes[i] >= 1 && sizes[i] <= std::uint64_t{1} << 32 && box[i] >= 1 && box[i] <= 256 && steps[i] == 1;
    made.sizes[i] = sizes[i];
    made.box[i] = box[i];
    if (i + 1 == dimensions) break;
    known = known && strides[i] % 16 == 0 && strides[i] < std::uint64_t{1} << 40;
    made.strides[i] = strides[i];
  }
  if (!known) return CUDA_ERROR_INVALID_VALUE;
  std::memset(map, 0, sizeof *map);
  std::memcpy(map, &made, sizeof made);
  return CUDA_SUCCESS;
}

}  // namespace

const LastLaunch& last_launch() {
  return last;
}

cudaError_t launch(const cudaLaunchConfig_t& config, const void* kernel, const Kernel& call, const void* argument,
                   std::size_t argument_bytes) {
  const dim3& grid = config.gridDim;
  const dim3& block = config.blockDim;
  const Launch made{grid.x * grid.y * grid.z,
                    cluster_of(config, 1),
                    block.x * block.y,
                    static_cast<std::uint32_t>(config.dynamicSmemBytes),
                    grid.x,
                    grid.y,
                    block.x};
  const Limits& allowed = limits[kernel];
  if (made.grid == 0 || block.z != 1 || made.threads == 0 || made.threads > 1024 || made.cluster == 0 ||
      made.cluster > allowed.cluster || grid.x % made.cluster != 0 || made.shared_bytes > allowed.shared)
    return cudaErrorInvalidConfiguration;
  const auto* bytes = static_cast<const unsigned char*>(argument);
  last = {made, {bytes, bytes + argument_bytes}};
  auto* stream = reinterpret_cast<Stream*>(config.stream);
  if (stream == nullptr || stream->recording == nullptr) return run_now(made, call);
  stream->recording->launches.push_back({made, call});
  return cudaSuccess;
}

}  // namespace facet::emulated

namespace emulated = facet::emulated;

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaGetLastError() {
  return cudaSuccess;
}
const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "no error";
    case cudaErrorLaunchFailure:
      return emulated::last_fault.c_str();
    case cudaErrorInvalidConfiguration:
      return "a launch that the device refuses";
    default:
      return "what the emulated runtime does not have";
  }
}
const char* cudaGetErrorName(cudaError_t error) {
  return cudaGetErrorString(error);
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr name, int) {
  const emulated::Device& device = emulated::device();
  switch (name) {
    case cudaDevAttrComputeCapabilityMajor:
      *value = 9;
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor:
      *value = 0;
      return cudaSuccess;
    case cudaDevAttrMultiProcessorCount:
      *value = device.multiprocessors;
      return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = device.shared_per_block;
      return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
      *value = device.shared_per_multiprocessor;
      return cudaSuccess;
    default:
      return cudaErrorInvalidValue;
  }
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  *properties = {};
  properties->major = 9;
  properties->multiProcessorCount = emulated::device().multiprocessors;
  return cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute name, int value) {
  if (name == cudaFuncAttributeNonPortableClusterSizeAllowed)
    emulated::limits[kernel].cluster = value != 0 ? emulated::kLargestCluster : emulated::Limits{}.cluster;
  if (name != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess;
  if (value > emulated::device().shared_per_block) return cudaErrorInvalidValue;
  emulated::limits[kernel].shared = static_cast<std::uint32_t>(value);
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveClusters(int* clusters, const void*, const cudaLaunchConfig_t* config) {
  const emulated::Device& device = emulated::device();
  const auto blocks = static_cast<int>(emulated::cluster_of(*config, config->gridDim.x));
  *clusters = device.multiprocessors / blocks - (blocks > 2 ? device.lost_clusters : 0);
  if (*clusters < 0) *clusters = 0;
  return cudaSuccess;
}
cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult* found) {
  if (std::strcmp(symbol, "cuTensorMapEncodeTiled") != 0) return cudaErrorInvalidValue;
  *function = reinterpret_cast<void*>(&emulated::encode_tensor_map);
  *found = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** memory, size_t bytes) {
  *memory = std::aligned_alloc(256, (bytes + 255) / 256 * 256 + 256);
  return *memory != nullptr ? cudaSuccess : cudaErrorMemoryAllocation;
}
cudaError_t cudaFree(void* memory) {
  std::free(memory);
  return cudaSuccess;
}
cudaError_t cudaMemset(void* memory, int value, size_t bytes) {
  std::memset(memory, value, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemcpy(void* target, const void* source, size_t bytes, cudaMemcpyKind) {
  std::memcpy(target, source, bytes);
  return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize() {
  return cudaSuccess;
}
cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  return cudaStreamCreateWithFlags(stream, 0);
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = reinterpret_cast<cudaStream_t>(new emulated::Stream);
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  delete reinterpret_cast<emulated::Stream*>(stream);
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t) {
  return cudaSuccess;
}
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  reinterpret_cast<emulated::Stream*>(stream)->recording = new emulated::Graph;
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  auto* known = reinterpret_cast<emulated::Stream*>(stream);
  *graph = reinterpret_cast<cudaGraph_t>(known->recording);
  known->recording = nullptr;
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* made, cudaGraph_t graph, unsigned long long) {
  *made = reinterpret_cast<cudaGraphExec_t>(new emulated::Graph(*reinterpret_cast<emulated::Graph*>(graph)));
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t) {
  for (const emulated::Recorded& each : reinterpret_cast<emulated::Graph*>(graph)->launches) {
    const cudaError_t result = emulated::run_now(each.launch, each.kernel);
    if (result != cudaSuccess) return result;
  }
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) {
  delete reinterpret_cast<emulated::Graph*>(graph);
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete reinterpret_cast<emulated::Graph*>(graph);
  return cudaSuccess;
}

}  // extern "C"
