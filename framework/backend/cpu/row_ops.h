// Single-row pieces of the backend's operations. Pointers are not null unless stated; widths are in elements.
#pragma once

#include <cstdint>

namespace facet::cpu {

// out = in * (inverse rms of in) * weight; weight null: 1. out may be in.
void norm_row(const float* in, const float* weight, float epsilon, std::int64_t width, float* out);
// out = (hidden + norm(update) * post_norm) * scale; out may be hidden
void residual_row(const float* hidden, const float* update, const float* post_norm, float scale, float epsilon,
                  std::int64_t width, float* out);
// out[i] = gelu_tanh(gate[i]) * up[i]
void gelu_gate_row(const float* gate, const float* up, std::int64_t width, float* out);
void soft_cap_row(float* values, std::int64_t count, float cap);
// Turns pairs (i, i + width / 2), i < live.
void rotate_row(float* x, const float* cosine, const float* sine, std::int64_t live, std::int64_t width);
// Multiplies the pairs that do not turn, (i, i + width / 2) for live <= i < width / 2, by their weights.
void scale_unturned_row(float* x, const float* weight, std::int64_t live, std::int64_t width);
void store_bf16_row(const float* in, std::int64_t width, std::uint16_t* out);
// Symmetric int8 with one scale for the row: scale = max|x| / 127; an all-zero row has scale 0. Returns the scale.
float store_i8_row(const float* in, std::int64_t width, std::int8_t* out);

}  // namespace facet::cpu
