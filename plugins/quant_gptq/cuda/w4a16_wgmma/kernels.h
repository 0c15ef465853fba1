// The kernels of kernel.cuh by columns of a tile; each number is compiled in a file of its own.
#pragma once

#include "quant_gptq/cuda/w4a16_wgmma/tile.h"

namespace facet::linear {

using WgmmaKernel = void (*)(WgmmaArgs, CUtensorMap);

WgmmaKernel wgmma_kernel_8(const Rows32& shape, const TileForm& form);
WgmmaKernel wgmma_kernel_16(const Rows32& shape, const TileForm& form);
WgmmaKernel wgmma_kernel_32(const Rows32& shape, const TileForm& form);
WgmmaKernel wgmma_kernel_48(const Rows32& shape, const TileForm& form);
WgmmaKernel wgmma_kernel_64(const Rows32& shape, const TileForm& form);
WgmmaKernel wgmma_kernel_96(const Rows32& shape, const TileForm& form);
WgmmaKernel wgmma_kernel_128(const Rows32& shape, const TileForm& form);

}  // namespace facet::linear
