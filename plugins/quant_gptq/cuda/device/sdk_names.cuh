// The instructions of facet/sdk/cuda that the kernels use, by short names. For device code.
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "facet/sdk/cuda/barrier.cuh"
#include "facet/sdk/cuda/cluster.cuh"
#include "facet/sdk/cuda/copy.cuh"
#include "facet/sdk/cuda/launch.cuh"
#include "facet/sdk/cuda/memory.cuh"

namespace facet::linear {

using facet::cuda::async_fence, facet::cuda::async_fence_shared, facet::cuda::shared_address;
using facet::cuda::barrier_arrive, facet::cuda::barrier_arrive_remote, facet::cuda::barrier_expect;
using facet::cuda::barrier_init, facet::cuda::barrier_init_fence, facet::cuda::barrier_test;
using facet::cuda::barrier_wait, facet::cuda::barrier_wait_cluster, facet::cuda::named_arrive, facet::cuda::named_sync;
using facet::cuda::block_memory_1024, facet::cuda::block_memory_128;
using facet::cuda::bulk_copy, facet::cuda::evict_first_policy, facet::cuda::tensor_copy;
using facet::cuda::cluster_address, facet::cuda::cluster_arrive, facet::cuda::cluster_wait;
using facet::cuda::let_successor_begin, facet::cuda::wait_for_predecessor;

}  // namespace facet::linear
