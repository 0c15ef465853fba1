// Matrices in the registers of a warp: loads and products.
#include <bit>
#include <cstring>

#include "instructions.h"
#include "state.h"

namespace facet::emulated {

namespace {

struct Mma {
  int* d;
  const std::uint32_t* a;
  const std::uint32_t* b;
  std::array<int, 4> c;
};

// Element k of four of a register.
int byte_of(std::uint32_t word, int k) {
  return static_cast<int>(word >> (8 * k) & 255u);
}
int signed_byte_of(std::uint32_t word, int k) {
  return static_cast<std::int8_t>(word >> (8 * k) & 255u);
}

// Of the fragments of m16n8k32: register r of a holds row lane / 4 + 8 (r % 2), inputs 16 (r / 2) + 4 (lane % 4) on; of
// b column lane / 4 and the same inputs by 16 r; element i of the sums row lane / 4 + 8 (i / 2), column 2 (lane % 4) +
// i % 2.
void multiply(const std::array<void*, kLanes>& lanes) {
  const auto lane = [&](int i) { return static_cast<const Mma*>(lanes[static_cast<std::size_t>(i)]); };
  for (int row = 0; row < 16; ++row) {
    for (int column = 0; column < 8; ++column) {
      const Mma* owner = lane(row % 8 * 4 + column / 2);
      const auto element = static_cast<std::size_t>(row / 8 * 2 + column % 2);
      int sum = owner->c[element];
      for (int k = 0; k < 32; ++k) {
        const int t = k % 16 / 4;
        sum += byte_of(lane(row % 8 * 4 + t)->a[k / 16 * 2 + row / 8], k % 4) *
               signed_byte_of(lane(column * 4 + t)->b[k / 16], k % 4);
      }
      owner->d[element] = sum;
    }
  }
}

struct MmaFloat {
  float* d;
  const std::uint32_t* a;
  std::array<std::uint32_t, 2> b;
};

// Element k of two of a register.
float bf16_of(std::uint32_t word, int k) {
  return std::bit_cast<float>(k == 0 ? word << 16 : word & 0xffff0000u);
}

// Of the fragments of m16n8k16, as above with two inputs a register: 8 (r / 2) + 2 (lane % 4) on, of b by 8 r.
void multiply_floats(const std::array<void*, kLanes>& lanes) {
  const auto lane = [&](int i) { return static_cast<const MmaFloat*>(lanes[static_cast<std::size_t>(i)]); };
  for (int row = 0; row < 16; ++row) {
    for (int column = 0; column < 8; ++column) {
      const int element = row / 8 * 2 + column % 2;
      float* at = lane(row % 8 * 4 + column / 2)->d + element;
      for (int k = 0; k < 16; ++k) {
        const int t = k % 8 / 2;
        *at += bf16_of(lane(row % 8 * 4 + t)->a[k / 8 * 2 + row / 8], k % 2) *
               bf16_of(lane(column * 4 + t)->b[static_cast<std::size_t>(k / 8)], k % 2);
      }
    }
  }
}

struct Load {
  std::uint32_t* to;
  std::uint32_t from;
};

// One matrix of 8 rows of 16 bytes to register `index` of all lanes.
void load_matrix(Cluster& cluster, const std::array<void*, kLanes>& lanes, int index, bool transposed) {
  const auto lane = [&](int i) { return static_cast<const Load*>(lanes[static_cast<std::size_t>(i)]); };
  std::array<std::array<std::uint16_t, 8>, 8> matrix;
  for (int row = 0; row < 8; ++row) {
    auto& line = matrix[static_cast<std::size_t>(row)];
    std::memcpy(line.data(), place_at(cluster, lane(index * 8 + row)->from, sizeof line, 16, "ldmatrix"), sizeof line);
  }
  for (int i = 0; i < kLanes; ++i) {
    const auto row = static_cast<std::size_t>(i / 4);
    const auto column = static_cast<std::size_t>(i % 4 * 2);
    const std::uint32_t low = transposed ? matrix[column][row] : matrix[row][column];
    const std::uint32_t high = transposed ? matrix[column + 1][row] : matrix[row][column + 1];
    lane(i)->to[index] = low | high << 16;
  }
}

struct Transposition {
  std::uint32_t from, to;
};

// Lane i has columns 2 (i % 4) on of row i / 4, before and after.
void transpose(const std::array<void*, kLanes>& lanes) {
  const auto lane = [&](int i) { return static_cast<Transposition*>(lanes[static_cast<std::size_t>(i)]); };
  const auto value = [&](int row, int column) {
    return lane(row * 4 + column / 2)->from >> (16 * (column % 2)) & 0xffffu;
  };
  for (int i = 0; i < kLanes; ++i) {
    const int row = i / 4, column = i % 4 * 2;
    lane(i)->to = value(column, row) | value(column + 1, row) << 16;
  }
}

}  // namespace

void mma_u8s8(int* d, const std::uint32_t (&a)[4], const std::uint32_t (&b)[2], const int* c) {
  Mma own{d, a, b, {c[0], c[1], c[2], c[3]}};
  meet(~0u, "mma", 0, &own, multiply);
}

void mma_bf16(float* d, const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
  MmaFloat own{d, a, {b0, b1}};
  meet(~0u, "mma", 1, &own, multiply_floats);
}

void load_matrices(std::uint32_t* to, int count, std::uint32_t from, bool transposed) {
  Load own{to, from};
  Cluster& cluster = cluster_of(self());
  meet(~0u, "ldmatrix", static_cast<std::uint64_t>(count * 2 + (transposed ? 1 : 0)), &own,
       [&](const std::array<void*, kLanes>& lanes) {
         for (int i = 0; i < count; ++i) load_matrix(cluster, lanes, i, transposed);
       });
}

std::uint32_t transpose_matrix(std::uint32_t from) {
  Transposition own{from, 0};
  meet(~0u, "movmatrix", 0, &own, transpose);
  return own.to;
}

}  // namespace facet::emulated
