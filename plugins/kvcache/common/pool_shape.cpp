#include "common/pool_shape.h"

#include "common/storage.h"

namespace facet::kvcache {

namespace {

constexpr std::int64_t kMaxInt32 = 2147483647;

}  // namespace

void check_problem(const abi::KvProblem& problem, sdk::Reasons& reasons) {
  reasons.require(problem.device == abi::Device::cpu || problem.device == abi::Device::cuda, "the device is ",
                  sdk::to_string(problem.device), ", it must be cpu or cuda");
  const auto positive = [&](std::int64_t value, const char* name) {
    reasons.require(value >= 1, name, " is ", value, ", it must be at least 1");
  };
  positive(problem.layer_count, "layer_count");
  positive(problem.kv_heads, "kv_heads");
  positive(problem.head_dim, "head_dim");
  reasons.require(problem.key_channels == 0 || (problem.key_channels > 0 && problem.key_channels % 2 == 0 &&
                                                problem.key_channels < problem.head_dim),
                  "key_channels is ", problem.key_channels, ", it must be 0 (whole keys) or even and below head_dim, ",
                  problem.head_dim);
  positive(problem.max_sequences, "max_sequences");
  positive(problem.max_context, "max_context");
  positive(problem.max_chunk, "max_chunk");
  positive(problem.max_step_tokens, "max_step_tokens");
  reasons.require(problem.window >= 0, "window is ", problem.window, ", it must be 0 (global) or more");
  reasons.require(problem.max_context <= kMaxInt32, "max_context is ", problem.max_context,
                  ", positions are 32-bit: at most ", kMaxInt32);
  const auto bounded = [&](std::int64_t value, const char* name) {
    reasons.require(value <= kMaxInt32, name, " is ", value, ", it must be at most ", kMaxInt32);
  };
  bounded(problem.max_sequences, "max_sequences");
  bounded(problem.max_chunk, "max_chunk");
  bounded(problem.max_step_tokens, "max_step_tokens");
  bounded(problem.window, "window");
}

void check_pool(const abi::KvProblem& problem, abi::DType element, std::int64_t blocks, std::int64_t block_rows,
                sdk::Reasons& reasons) {
  reasons.require(blocks <= kMaxInt32, "the pool would have ", blocks, " blocks, block tables name at most ",
                  kMaxInt32);
  // A double is exact enough for a bound that leaves a factor of 8 to the range of int64.
  const auto width = static_cast<double>(sdk::kv_row_width(problem.head_dim, problem.key_channels));
  const double head_bytes = width * static_cast<double>(sdk::element_bytes(element)) + 4;
  const double block_bytes = head_bytes * static_cast<double>(problem.kv_heads) * static_cast<double>(block_rows) + 128;
  const double bytes = 2 * block_bytes * static_cast<double>(blocks) * static_cast<double>(problem.layer_count);
  reasons.require(bytes < 1152921504606846976.0, "the pool would have about ", bytes,
                  " bytes, at most 2^60 can be addressed");
}

PoolShape::PoolShape(const abi::KvProblem& problem, const abi::KvLayout& layout, std::int64_t blocks)
    : layout_(layout),
      strides_(sdk::kv_strides(layout, problem.kv_heads, sdk::kv_row_width(problem.head_dim, problem.key_channels))),
      layers_(problem.layer_count),
      kv_heads_(problem.kv_heads),
      head_dim_(problem.head_dim),
      key_channels_(problem.key_channels),
      blocks_(blocks) {
  // Strides are rounded to the alignment, so every part starts aligned without padding between the parts.
  codes_bytes_ = blocks * strides_.block * sdk::element_bytes(layout.element);
  scales_bytes_ = blocks * strides_.scale_block * static_cast<std::int64_t>(sizeof(float));
  layer_bytes_ = (key_channels_ == 0 ? 2 : 1) * codes_bytes_ + 2 * scales_bytes_;
}

std::uint64_t PoolShape::row_bytes() const {
  const std::int64_t codes = sdk::key_value_width(head_dim_, key_channels_) * sdk::element_bytes(layout_.element);
  const std::int64_t scales = layout_.scales == abi::KvScales::per_row_head ? 2 * 4 : 0;
  return static_cast<std::uint64_t>(layers_ * kv_heads_ * (codes + scales));
}

void PoolShape::check_memory(const abi::Memory& pool) const {
  if (pool.data == nullptr)
    sdk::fail(abi::Status::invalid_argument, "the pool is null, planned were ", bytes(), " bytes");
  if (pool.bytes < bytes())
    sdk::fail(abi::Status::invalid_argument, "the pool has ", pool.bytes, " bytes, planned were ", bytes());
  const auto misaligned = static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(pool.data) % kAlignment);
  if (misaligned != 0)
    sdk::fail(abi::Status::invalid_argument, "the pool starts ", misaligned, " bytes past a multiple of ", kAlignment);
}

void PoolShape::fill(const abi::Memory& pool, std::int64_t layer, std::int64_t ring_rows, abi::KvView& view) const {
  if (layer < 0 || layer >= layers_)
    sdk::fail(abi::Status::invalid_argument, "layer ", layer, " is outside [0, ", layers_, ")");
  char* begin = static_cast<char*>(pool.data) + layer * layer_bytes_;
  view.layout = layout_;
  view.kv_heads = kv_heads_;
  view.head_dim = head_dim_;
  view.key_channels = key_channels_;
  char* scales = begin + 2 * codes_bytes_;
  view.keys = begin;
  view.values = begin + codes_bytes_;
  if (key_channels_ > 0) {
    scales = begin + codes_bytes_;
    view.values = begin;
    view.keys = begin + head_dim_ * sdk::element_bytes(layout_.element);
  }
  if (layout_.scales == abi::KvScales::per_row_head) {
    view.key_scales = reinterpret_cast<float*>(scales);
    view.value_scales = reinterpret_cast<float*>(scales + scales_bytes_);
  }
  sdk::set_strides(view, strides_);
  view.ring_rows = ring_rows;
}

}  // namespace facet::kvcache
