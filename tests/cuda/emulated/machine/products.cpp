// Products of warpgroups: what a warp starts is done later, in order, its own 16 rows at a time.
#include <bit>
#include <cstring>
#include <optional>

#include "instructions.h"
#include "state.h"

namespace facet::emulated {

namespace {

constexpr int kWarpRows = 16;
constexpr std::uint32_t kPoison = 0x7fc5a5a5u;  // NaN, as an integer far from any sum
constexpr std::uint32_t kRowBytes = 128;        // of an operand in shared memory: a line
constexpr std::uint32_t kGroupBytes = 1024;     // 8 of these
constexpr std::uint32_t kPanelColumns = 64;     // of a line of one bf16 input
constexpr std::uint32_t kDepthLines = 16;       // bf16 inputs of a product

// What a lane brings.
struct Operands {
  std::uint32_t* sums;
  std::array<std::uint32_t, 4> a;
};

// Fields of the descriptor of wgmma_matrix.
struct Matrix {
  std::uint32_t address;
  std::uint32_t stride;  // of groups of 8 lines
  std::uint32_t panel;   // distance of 64 columns and the next, where lines are of inputs
  std::uint32_t swizzle;
  explicit Matrix(std::uint64_t bits)
      : address(static_cast<std::uint32_t>(bits & 0x3fff) << 4),
        stride(static_cast<std::uint32_t>(bits >> 32 & 0x3fff) << 4),
        panel(static_cast<std::uint32_t>(bits >> 16 & 0x3fff) << 4),
        swizzle(static_cast<std::uint32_t>(bits >> 62)) {}
  // Bytes 4 k to 4 k + 3 of a line.
  std::uint32_t word(const Block& block, std::uint32_t line, std::uint32_t k) const {
    const std::uint32_t byte = address + line / 8 * stride + line % 8 * kRowBytes + k * 4;
    std::uint32_t word;
    std::memcpy(&word, block.memory + (byte ^ (byte >> 7 & 7) << 4), sizeof word);
    return word;
  }
};

float of_bf16(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

struct Product : Work {
  Warp* warp = nullptr;
  Elements elements{};
  int columns = 0;
  bool add = false;
  Lines lines{};
  Matrix matrix{0};
  std::optional<Matrix> left_matrix;
  Accumulator* sums = nullptr;
  std::array<std::array<std::uint32_t, 4>, kLanes> a{};

  // Inputs 4 k to 4 k + 3 (integers) or 2 k and 2 k + 1 (bf16) of a row of the left operand.
  std::uint32_t left(int row, int k) const {
    if (left_matrix) {
      const auto line = static_cast<std::uint32_t>(warp->index % 4 * kWarpRows + row);
      return left_matrix->word(*warp->block, line, static_cast<std::uint32_t>(k));
    }
    return a[static_cast<std::size_t>(row % 8 * 4 + k % 4)][static_cast<std::size_t>(k / 4 * 2 + row / 8)];
  }
  // The same of a column of the right one.
  std::uint32_t right(int column, int k) const {
    const auto at = static_cast<std::uint32_t>(column);
    const auto words = static_cast<std::uint32_t>(k);
    if (lines == Lines::columns) return matrix.word(*warp->block, at, words);
    Matrix panel = matrix;
    panel.address += at / kPanelColumns * matrix.panel;
    const std::uint32_t shift = at % 2 * 16;
    const std::uint32_t low = panel.word(*warp->block, words * 2, at % kPanelColumns / 2) >> shift & 0xffffu;
    const std::uint32_t high = panel.word(*warp->block, words * 2 + 1, at % kPanelColumns / 2) >> shift & 0xffffu;
    return low | high << 16;
  }
  std::uint32_t& sum(int row, int column) const {
    return sums->values[static_cast<std::size_t>(row % 8 * 4 + column % 8 / 2)]
                       [static_cast<std::size_t>(column / 8 * 4 + row / 8 * 2 + column % 2)];
  }

  std::uint32_t add_integers(std::uint32_t before, int row, const std::array<std::uint32_t, 8>& line) const {
    auto sum = static_cast<std::int64_t>(static_cast<std::int32_t>(before));
    for (int k = 0; k < 8; ++k) {
      const std::uint32_t x = left(row, k);
      const std::uint32_t y = line[static_cast<std::size_t>(k)];
      for (int i = 0; i < 32; i += 8) {
        const int value = elements == Elements::u8 ? static_cast<int>(x >> i & 255u) : static_cast<std::int8_t>(x >> i);
        sum += value * static_cast<std::int8_t>(y >> i);
      }
    }
    return static_cast<std::uint32_t>(sum);
  }
  std::uint32_t add_floats(std::uint32_t before, int row, const std::array<std::uint32_t, 8>& line) const {
    float sum = std::bit_cast<float>(before);
    for (int k = 0; k < 8; ++k) {
      const std::uint32_t x = left(row, k);
      const std::uint32_t y = line[static_cast<std::size_t>(k)];
      sum += of_bf16(static_cast<std::uint16_t>(x)) * of_bf16(static_cast<std::uint16_t>(y));
      sum += of_bf16(static_cast<std::uint16_t>(x >> 16)) * of_bf16(static_cast<std::uint16_t>(y >> 16));
    }
    return std::bit_cast<std::uint32_t>(sum);
  }

  void run() override {
    for (int column = 0; column < columns; ++column) {
      std::array<std::uint32_t, 8> line;
      for (int k = 0; k < 8; ++k) line[static_cast<std::size_t>(k)] = right(column, k);
      for (int row = 0; row < kWarpRows; ++row) {
        std::uint32_t& at = sum(row, column);
        const std::uint32_t before = add ? at : 0;
        at = elements == Elements::bf16 ? add_floats(before, row, line) : add_integers(before, row, line);
      }
    }
  }
};

// The sums that these registers belong to. Their registers hold poison until they are waited for.
Accumulator& accumulator_of(Warp& warp, const std::array<void*, kLanes>& lanes, std::size_t count) {
  const auto registers = [&](std::size_t lane) { return static_cast<const Operands*>(lanes[lane])->sums; };
  for (Accumulator& known : warp.accumulators) {
    if (known.registers[0] != registers(0) || known.values[0].size() != count) continue;
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      for (std::size_t i = 0; i < count; ++i) {
        if (known.registers[lane] != registers(lane) || registers(lane)[i] != kPoison)
          fail("registers of a product under way were written");
      }
    }
    return known;
  }
  Accumulator& made = warp.accumulators.emplace_back();
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    made.registers[lane] = registers(lane);
    made.values[lane].assign(registers(lane), registers(lane) + count);
    for (std::size_t i = 0; i < count; ++i) registers(lane)[i] = kPoison;
  }
  return made;
}

void check_matrix(const Block& block, const Matrix& matrix, std::uint32_t lines) {
  if (matrix.swizzle != 1) fail("a matrix that is not in the 128-byte swizzle");
  if (matrix.stride != kGroupBytes) fail("a matrix whose groups of 8 lines do not follow each other");
  if (matrix.address % kGroupBytes >= kRowBytes) fail("a matrix that does not begin at a multiple of 1024 bytes");
  const std::uint32_t first = matrix.address / kGroupBytes * kGroupBytes;
  if (first < kSystemBytes || first + lines * kRowBytes > block.bytes)
    fail("a matrix outside of shared memory, at offset " + std::to_string(first) + " of " +
         std::to_string(block.bytes));
}

void check_panels(const Block& block, Matrix matrix, std::uint32_t columns) {
  if (matrix.address % kGroupBytes != 0 || (columns > kPanelColumns && matrix.panel % kGroupBytes != 0))
    fail("panels that do not begin at multiples of 1024 bytes");
  for (std::uint32_t column = 0; column < columns; column += kPanelColumns) {
    check_matrix(block, matrix, kDepthLines);
    matrix.address += matrix.panel;
  }
}

// Warps of a group start the same products.
void log_product(Warp& warp, std::uint64_t what) {
  std::vector<std::uint64_t>& log = warp.block->product_log[static_cast<std::size_t>(warp.index / 4)];
  if (warp.products == log.size()) {
    log.push_back(what);
  } else if (log[warp.products] != what) {
    fail("a product unlike that of the other warps of the group");
  }
  ++warp.products;
}

void finish_groups(Warp& warp, std::uint64_t before) {
  finish_work(&warp, before);
  for (auto at = warp.accumulators.begin(); at != warp.accumulators.end();) {
    if (at->last_group >= before) {
      ++at;
      continue;
    }
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      for (std::size_t i = 0; i < at->values[lane].size(); ++i) {
        if (at->registers[lane][i] != kPoison) fail("registers of a product under way were written");
        at->registers[lane][i] = at->values[lane][i];
      }
    }
    at = warp.accumulators.erase(at);
  }
}

// Starts `wanted` for the calling warp, whose lanes bring `own`.
void start_product(const Product& wanted, std::uint64_t what, Operands own) {
  Warp& warp = *self().warp;
  meet(~0u, "wgmma", what, &own, [&](const std::array<void*, kLanes>& lanes) {
    if (!warp.product_fence) fail("wgmma without wgmma.fence before it");
    const auto columns = static_cast<std::uint32_t>(wanted.columns);
    if (wanted.lines == Lines::inputs) {
      check_panels(*warp.block, wanted.matrix, columns);
    } else {
      check_matrix(*warp.block, wanted.matrix, columns);
    }
    if (wanted.left_matrix) check_matrix(*warp.block, *wanted.left_matrix, 4 * kWarpRows);
    log_product(warp, what * 1024 + columns * 4 + static_cast<std::uint64_t>(wanted.elements));
    auto made = std::make_unique<Product>(wanted);
    made->owner = &warp;
    made->ordered = true;
    made->group = warp.open_group;
    made->warp = &warp;
    made->sums = &accumulator_of(warp, lanes, columns / 2);
    made->sums->last_group = warp.open_group;
    for (std::size_t lane = 0; lane < kLanes; ++lane) made->a[lane] = static_cast<const Operands*>(lanes[lane])->a;
    add_work(std::move(made));
  });
}

}  // namespace

void product_fence() {
  Warp& warp = *self().warp;
  meet(~0u, "wgmma.fence", 0, nullptr, [&](const auto&) { warp.product_fence = true; });
}

void product_commit() {
  Warp& warp = *self().warp;
  meet(~0u, "wgmma.commit_group", 0, nullptr, [&](const auto&) {
    ++warp.open_group;
    warp.product_fence = false;
  });
}

void product_wait(int pending) {
  Warp& warp = *self().warp;
  meet(~0u, "wgmma.wait_group", static_cast<std::uint64_t>(pending), nullptr, [&](const auto&) {
    const auto kept = static_cast<std::uint64_t>(pending);
    if (warp.open_group > kept) finish_groups(warp, warp.open_group - kept);
  });
}

void product(Elements elements, int columns, void* sums, const std::uint32_t (&a)[4], std::uint64_t matrix, bool add,
             Lines lines) {
  Product wanted;
  wanted.elements = elements;
  wanted.columns = columns;
  wanted.add = add;
  wanted.lines = lines;
  wanted.matrix = Matrix(matrix);
  start_product(wanted, matrix, {static_cast<std::uint32_t*>(sums), {a[0], a[1], a[2], a[3]}});
}

void product_of_matrices(int columns, void* sums, std::uint64_t left, std::uint64_t right, bool add) {
  Product wanted;
  wanted.elements = Elements::bf16;
  wanted.columns = columns;
  wanted.add = add;
  wanted.matrix = Matrix(right);
  wanted.left_matrix = Matrix(left);
  start_product(wanted, left * 31 + right, {static_cast<std::uint32_t*>(sums), {}});
}

}  // namespace facet::emulated
