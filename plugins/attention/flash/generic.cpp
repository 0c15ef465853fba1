// Any processor: four lanes in plain C++, which compilers turn into the baseline vectors of the target.
#include "flash/kernels.h"

namespace facet::attention {

namespace {

struct Four {
  float lane[4];
};

struct Simd {
  using V = Four;
  static constexpr const char* kName = "generic";
  static constexpr std::int64_t kLanes = 4;
  static constexpr int kTileRows = 2;
  static constexpr int kTileVectors = 4;

  static V zero() { return set1(0.0f); }
  static V set1(float x) { return {{x, x, x, x}}; }
  static V load(const float* from) { return {{from[0], from[1], from[2], from[3]}}; }
  static V load(const std::uint16_t* from) { return {{wide(from[0]), wide(from[1]), wide(from[2]), wide(from[3])}}; }
  static V load(const std::int8_t* from) { return {{wide(from[0]), wide(from[1]), wide(from[2]), wide(from[3])}}; }
  template <typename T>
  static V load_half(const T* from) {  // never needed: head_dim is a multiple of 8
    return load(from);
  }
  static void store(float* to, V x) {
    for (int i = 0; i < 4; ++i) to[i] = x.lane[i];
  }
  static V add(V a, V b) {
    for (int i = 0; i < 4; ++i) a.lane[i] += b.lane[i];
    return a;
  }
  static V sub(V a, V b) {
    for (int i = 0; i < 4; ++i) a.lane[i] -= b.lane[i];
    return a;
  }
  static V mul(V a, V b) {
    for (int i = 0; i < 4; ++i) a.lane[i] *= b.lane[i];
    return a;
  }
  static V fma(V a, V b, V c) {  // two roundings: the file is compiled without contraction
    for (int i = 0; i < 4; ++i) c.lane[i] += a.lane[i] * b.lane[i];
    return c;
  }
  static V max(V a, V b) {  // a NaN in the first argument is kept
    for (int i = 0; i < 4; ++i) a.lane[i] = b.lane[i] > a.lane[i] ? b.lane[i] : a.lane[i];
    return a;
  }
  static V round(V x) {  // adding 1.5 * 2^23 leaves no bits below 1; |x| stays below 2^22
    for (int i = 0; i < 4; ++i) x.lane[i] = (x.lane[i] + 12582912.0f) - 12582912.0f;
    return x;
  }
  // x * 2^n for whole n that keep the result normal.
  static V scale_by_power(V x, V n) {
    for (int i = 0; i < 4; ++i) {
      if (n.lane[i] != n.lane[i]) continue;  // NaN: x is NaN too
      const std::uint32_t exponent = static_cast<std::uint32_t>(static_cast<std::int32_t>(n.lane[i]) + 127) << 23;
      x.lane[i] *= __builtin_bit_cast(float, exponent);
    }
    return x;
  }
  static V zero_below(V x, V test, float limit) {
    for (int i = 0; i < 4; ++i) x.lane[i] = test.lane[i] < limit ? 0.0f : x.lane[i];
    return x;
  }
  static float first(V x) { return x.lane[0]; }
  static float sum(V x) { return (x.lane[0] + x.lane[1]) + (x.lane[2] + x.lane[3]); }
  static void sum4(V a, V b, V c, V d, float* to) {
    to[0] = sum(a);
    to[1] = sum(b);
    to[2] = sum(c);
    to[3] = sum(d);
  }
  static float largest(V x) {
    float most = x.lane[0];
    for (int i = 1; i < 4; ++i) most = x.lane[i] > most ? x.lane[i] : most;
    return most;
  }

 private:
  static float wide(std::uint16_t x) { return __builtin_bit_cast(float, static_cast<std::uint32_t>(x) << 16); }
  static float wide(std::int8_t x) { return static_cast<float>(x); }
};

#include "flash/kernel_body.inc"

}  // namespace

const Kernels& generic_kernels() {
  return kKernels;
}

}  // namespace facet::attention
