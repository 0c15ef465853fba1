#include "row_ops.h"

#include "facet/sdk/numeric.h"
#include "vector_math.h"

namespace facet::cpu {

FACET_CLONES void norm_row(const float* in, const float* weight, float epsilon, std::int64_t width, float* out) {
  const float factor = inverse_rms(in, width, epsilon);
  if (weight == nullptr) {
    for (std::int64_t i = 0; i < width; ++i) out[i] = in[i] * factor;
  } else {
    for (std::int64_t i = 0; i < width; ++i) out[i] = in[i] * factor * weight[i];
  }
}

FACET_CLONES void residual_row(const float* hidden, const float* update, const float* post_norm, float scale,
                               float epsilon, std::int64_t width, float* out) {
  const float factor = inverse_rms(update, width, epsilon);
  for (std::int64_t i = 0; i < width; ++i) out[i] = (hidden[i] + update[i] * factor * post_norm[i]) * scale;
}

FACET_CLONES void gelu_gate_row(const float* gate, const float* up, std::int64_t width, float* out) {
  for (std::int64_t i = 0; i < width; ++i) out[i] = gelu_tanh(gate[i]) * up[i];
}

FACET_CLONES void soft_cap_row(float* values, std::int64_t count, float cap) {
  const float inverse = 1.0f / cap;
  for (std::int64_t i = 0; i < count; ++i) values[i] = cap * fast_tanh(values[i] * inverse);
}

FACET_CLONES void rotate_row(float* x, const float* cosine, const float* sine, std::int64_t live, std::int64_t width) {
  float* second = x + width / 2;
  for (std::int64_t i = 0; i < live; ++i) {
    const float a = x[i], b = second[i];
    x[i] = a * cosine[i] - b * sine[i];
    second[i] = b * cosine[i] + a * sine[i];
  }
}

FACET_CLONES void scale_unturned_row(float* x, const float* weight, std::int64_t live, std::int64_t width) {
  for (std::int64_t i = live; i < width / 2; ++i) x[i] *= weight[i];
  for (std::int64_t i = width / 2 + live; i < width; ++i) x[i] *= weight[i];
}

FACET_CLONES void store_bf16_row(const float* in, std::int64_t width, std::uint16_t* out) {
  for (std::int64_t i = 0; i < width; ++i) out[i] = sdk::float_to_bf16(in[i]);
}

FACET_CLONES float store_i8_row(const float* in, std::int64_t width, std::int8_t* out) {
  float largest = 0;
  for (std::int64_t i = 0; i < width; ++i) largest = std::fabs(in[i]) > largest ? std::fabs(in[i]) : largest;
  const float scale = largest / 127.0f;
  const float inverse = largest > 0 ? 127.0f / largest : 0.0f;
  for (std::int64_t i = 0; i < width; ++i) out[i] = static_cast<std::int8_t>(std::nearbyint(in[i] * inverse));
  return scale;
}

}  // namespace facet::cpu
