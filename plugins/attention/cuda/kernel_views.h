// What a call of the contract says, as the kernels get it.
#pragma once

#include "attention/cuda/params.h"
#include "attention/cuda/tensor_maps.h"
#include "facet/abi/attention.h"

namespace facet::attention::cuda {

KvSource kv_source(const abi::KvView& view);
Preparation preparation_of(const abi::AttentionPreparation& from);
// box_rows: rows of a copied box, see tensor_box_rows().
TensorView tensor_view(const abi::KvView& view, std::int32_t box_rows);

}  // namespace facet::attention::cuda
