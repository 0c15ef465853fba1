#include "attention/cuda/kernel_views.h"

#include "facet/sdk/kv_rows.h"

namespace facet::attention::cuda {

KvSource kv_source(const abi::KvView& view) {
  KvSource kv{};
  kv.keys = view.keys;
  kv.values = view.values;
  kv.key_scales = view.key_scales;
  kv.value_scales = view.value_scales;
  kv.block_stride = view.block_stride;
  kv.row_stride = view.row_stride;
  kv.head_stride = view.head_stride;
  kv.scale_block_stride = view.scale_block_stride;
  kv.scale_row_stride = view.scale_row_stride;
  kv.scale_head_stride = view.scale_head_stride;
  kv.table = view.block_table;
  kv.table_stride = view.table_stride;
  kv.block_rows = view.layout.block_rows;
  kv.ring_rows = static_cast<std::uint32_t>(view.ring_rows);
  kv.single_block = view.layout.addressing == abi::KvAddressing::paged ? 0 : 1;
  return kv;
}

Preparation preparation_of(const abi::AttentionPreparation& from) {
  Preparation preparation{};
  preparation.projections = from.projections;
  preparation.stride = from.projection_stride;
  preparation.query_norm = from.query_norm;
  preparation.key_norm = from.key_norm;
  preparation.cosine = from.cosine;
  preparation.sine = from.sine;
  preparation.live = static_cast<std::int32_t>(from.rotary_live);
  preparation.epsilon = from.epsilon;
  preparation.values_from_keys = from.values_from_keys != 0 ? 1 : 0;
  const bool aligned =
      (reinterpret_cast<std::uintptr_t>(from.cosine) | reinterpret_cast<std::uintptr_t>(from.sine)) % 16 == 0;
  preparation.angles_in_fours = aligned && from.rotary_live % 4 == 0 ? 1 : 0;
  return preparation;
}

TensorView tensor_view(const abi::KvView& view, std::int32_t box_rows) {
  TensorView tensor{};
  tensor.keys = view.keys;
  tensor.values = view.values;
  tensor.key_width = sdk::key_width(view.head_dim, view.key_channels);
  tensor.value_width = sdk::kv_row_width(view.head_dim, view.key_channels);  // with the key behind it
  tensor.block_rows = view.layout.block_rows;
  tensor.kv_heads = view.kv_heads;
  tensor.block_stride = view.block_stride;
  tensor.row_stride = view.row_stride;
  tensor.head_stride = view.head_stride;
  tensor.box_rows = box_rows;
  return tensor;
}

}  // namespace facet::attention::cuda
