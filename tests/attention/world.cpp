#include "world.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "facet/sdk/kv_rows.h"

namespace facet::test {

namespace {

// Uniform in [-1, 1) from a counter (splitmix64), so any element can be made alone.
double uniform(std::uint64_t a, std::uint64_t b, std::uint64_t c, std::uint64_t d) {
  std::uint64_t x = a * 0x9e3779b97f4a7c15ull + b * 0xbf58476d1ce4e5b9ull + c * 0x94d049bb133111ebull + d;
  for (int round = 0; round < 2; ++round) {
    x += 0x9e3779b97f4a7c15ull;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    x ^= x >> 31;
  }
  return static_cast<double>(x >> 40) * 0x1p-23 - 1.0;
}

constexpr std::uint32_t kCanary = 0x7fc0dead;
constexpr std::int64_t kGuardBytes = 256;

// What the element type keeps of x: the number itself and, for i8, a code and the scale of its row.
float row_scale(bool keys, std::uint64_t seed, std::int64_t position, std::int64_t head) {
  const double wobble =
      uniform(seed, static_cast<std::uint64_t>(position), static_cast<std::uint64_t>(head), keys ? 77 : 78);
  return static_cast<float>((1.0 + 0.25 * wobble) / 100.0);
}
std::int8_t code_of(double x, float scale) {
  return static_cast<std::int8_t>(std::clamp(std::nearbyint(x / static_cast<double>(scale)), -127.0, 127.0));
}

}  // namespace

Content random_content() {
  const auto make = [](std::uint64_t salt) {
    return [salt](std::uint64_t seed, std::int64_t position, std::int64_t head, std::int64_t d) {
      return uniform(seed * 8 + salt, static_cast<std::uint64_t>(position), static_cast<std::uint64_t>(head),
                     static_cast<std::uint64_t>(d));
    };
  };
  return {make(1), make(2), make(3)};
}

std::string describe(const Shape& shape, const Storage& storage, const std::vector<Piece>& pieces) {
  std::string text = "heads " + std::to_string(shape.query_heads) + "/" + std::to_string(shape.kv_heads) + " dim " +
                     std::to_string(shape.head_dim) + " key channels " + std::to_string(shape.key_channels) +
                     " window " + std::to_string(shape.window) + " addressing " +
                     std::to_string(static_cast<int>(storage.addressing)) + " order " +
                     std::to_string(static_cast<int>(storage.order)) + " element " +
                     std::to_string(static_cast<int>(storage.element)) + " pieces";
  for (const Piece& piece : pieces) {
    text += " seed " + std::to_string(piece.seed) + " [" + std::to_string(piece.first) + " +" +
            std::to_string(piece.tokens) + ")";
  }
  return text;
}

abi::AttentionProblem make_problem(const Shape& shape, const Storage& storage, std::uint32_t block_rows,
                                   const std::vector<Piece>& pieces) {
  abi::AttentionProblem problem{};
  problem.size = sizeof problem;
  problem.device = abi::Device::cpu;
  problem.input = abi::DType::f32;
  problem.output = abi::DType::f32;
  problem.query_heads = shape.query_heads;
  problem.kv_heads = shape.kv_heads;
  problem.head_dim = shape.head_dim;
  problem.key_channels = shape.key_channels;
  problem.window = shape.window;
  problem.scale = shape.scale;
  problem.max_sequences = static_cast<std::int64_t>(pieces.size());
  problem.max_step_tokens = 0;
  problem.max_context = 1;
  for (const Piece& piece : pieces) {
    problem.max_step_tokens += piece.tokens;
    problem.max_context = std::max(problem.max_context, piece.first + piece.tokens);
  }
  problem.max_step_tokens = std::max<std::int64_t>(1, problem.max_step_tokens);
  problem.layout.size = sizeof problem.layout;
  problem.layout.addressing = storage.addressing;
  problem.layout.order = storage.order;
  problem.layout.element = storage.element;
  problem.layout.scales = storage.element == abi::DType::i8 ? abi::KvScales::per_row_head : abi::KvScales::none;
  problem.layout.block_rows = block_rows;
  problem.layout.alignment = 64;
  return problem;
}

World::World(const Shape& shape, const Storage& storage, std::vector<Piece> pieces, const Content& content)
    : shape_(shape), storage_(storage), pieces_(std::move(pieces)), content_(content) {
  std::int32_t tokens = 0;
  std::int64_t most_tokens = 0, most_rows = 0;
  for (const Piece& piece : pieces_) {
    most_tokens = std::max<std::int64_t>(most_tokens, piece.tokens);
    most_rows = std::max<std::int64_t>(most_rows, piece.first + piece.tokens);
    token_begin_.push_back(tokens);
    first_position_.push_back(static_cast<std::int32_t>(piece.first));
    tokens += static_cast<std::int32_t>(piece.tokens);
  }
  token_begin_.push_back(tokens);
  batch_ = {sizeof batch_,
            static_cast<std::int32_t>(pieces_.size()),
            tokens,
            token_begin_.data(),
            first_position_.data(),
            most_tokens,
            most_rows};
  for (const Piece& piece : pieces_) {
    for (std::int64_t token = 0; token < piece.tokens; ++token) {
      for (std::int64_t head = 0; head < shape_.query_heads; ++head) {
        for (std::int64_t d = 0; d < shape_.head_dim; ++d) {
          queries_.push_back(static_cast<float>(content_.query(piece.seed, piece.first + token, head, d)));
        }
      }
    }
  }
  place();
  for (std::int64_t s = 0; s < batch_.sequence_count; ++s) {
    const Piece& piece = pieces_[static_cast<std::size_t>(s)];
    if (piece.tokens == 0) continue;
    // Rows outside the window stay what the pool was filled with: nobody may read them.
    for (std::int64_t p = sdk::window_begin(piece.first, shape_.window); p < piece.first + piece.tokens; ++p) {
      write_row(s, p);
    }
  }
}

void World::place() {
  std::int64_t longest = 1;
  std::int64_t most_tokens = 1;
  for (const Piece& piece : pieces_) {
    longest = std::max(longest, piece.first + piece.tokens);
    most_tokens = std::max(most_tokens, piece.tokens);
  }
  const auto sequences = static_cast<std::int64_t>(pieces_.size());
  std::int64_t rows = storage_.block_rows;
  if (storage_.addressing == abi::KvAddressing::contiguous) rows = longest + 3;
  if (storage_.addressing == abi::KvAddressing::ring) {
    rows = (shape_.window > 0 ? shape_.window + most_tokens - 1 : longest) + storage_.spare_rows;
    view_.ring_rows = rows;
  }
  problem_ = make_problem(shape_, storage_, static_cast<std::uint32_t>(rows), pieces_);
  const bool paged = storage_.addressing == abi::KvAddressing::paged;
  view_.size = sizeof view_;
  view_.layout = problem_.layout;
  view_.kv_heads = shape_.kv_heads;
  view_.head_dim = shape_.head_dim;
  view_.key_channels = shape_.key_channels;
  view_.table_stride = paged ? (longest + rows - 1) / rows + 1 : 1;
  table_.assign(static_cast<std::size_t>(sequences * view_.table_stride), -1);
  // Ids descend and skip, so that neighbouring blocks of a sequence are never neighbours in memory.
  std::int32_t blocks = 1;
  for (std::int64_t s = 0; s < sequences; ++s) {
    const Piece& piece = pieces_[static_cast<std::size_t>(s)];
    if (piece.tokens == 0) continue;
    const std::int64_t first = paged ? sdk::window_begin(piece.first, shape_.window) / rows : 0;
    const std::int64_t last = paged ? (piece.first + piece.tokens - 1) / rows : 0;
    for (std::int64_t b = last; b >= first; --b) {
      table_[static_cast<std::size_t>(s * view_.table_stride + b)] = blocks;
      blocks += 2;
    }
  }
  const sdk::KvStrides strides =
      sdk::kv_strides(view_.layout, shape_.kv_heads, sdk::kv_row_width(shape_.head_dim, shape_.key_channels));
  sdk::set_strides(view_, strides);
  const auto bytes = static_cast<std::size_t>(blocks * strides.block * sdk::element_bytes(storage_.element));
  keys_.assign(bytes, static_cast<std::byte>(storage_.fill));
  values_ = keys_;
  view_.keys = keys_.data();
  view_.values = values_.data();
  if (shape_.key_channels > 0) view_.keys = values_.data() + shape_.head_dim * sdk::element_bytes(storage_.element);
  view_.block_table = table_.data();
  if (view_.layout.scales == abi::KvScales::none) return;
  key_scales_.resize(static_cast<std::size_t>(blocks * strides.scale_block));
  std::memset(key_scales_.data(), storage_.fill, key_scales_.size() * sizeof(float));
  value_scales_ = key_scales_;
  view_.key_scales = key_scales_.data();
  view_.value_scales = value_scales_.data();
}

void World::write_row(std::int64_t sequence, std::int64_t position) {
  const sdk::KvRun run = sdk::kv_run(view_, sequence, position, position + 1);
  const std::uint64_t seed = pieces_[static_cast<std::size_t>(sequence)].seed;
  for (std::int64_t head = 0; head < shape_.kv_heads; ++head) {
    if (view_.key_scales != nullptr) {
      const std::int64_t at = run.scale_offset + head * view_.scale_head_stride;
      view_.key_scales[at] = row_scale(true, seed, position, head);
      view_.value_scales[at] = row_scale(false, seed, position, head);
    }
    for (const bool keys : {true, false}) {
      const float scale = row_scale(keys, seed, position, head);
      const std::int64_t width = keys ? sdk::key_width(shape_.head_dim, shape_.key_channels) : shape_.head_dim;
      for (std::int64_t d = 0; d < width; ++d) {
        const std::int64_t at = run.offset + head * view_.head_stride + d;
        const double x =
            keys ? content_.key(seed, position, head, channel_of(d)) : content_.value(seed, position, head, d);
        void* pool = keys ? view_.keys : view_.values;
        if (storage_.element == abi::DType::f32) static_cast<float*>(pool)[at] = static_cast<float>(x);
        if (storage_.element == abi::DType::bf16) {
          static_cast<std::uint16_t*>(pool)[at] = sdk::float_to_bf16(static_cast<float>(x));
        }
        if (storage_.element == abi::DType::i8) static_cast<std::int8_t*>(pool)[at] = code_of(x, scale);
      }
    }
  }
}

std::int64_t World::channel_of(std::int64_t d) const {
  if (shape_.key_channels == 0 || d < shape_.key_channels / 2) return d;
  return shape_.head_dim / 2 + d - shape_.key_channels / 2;
}

bool World::value_stands_for(std::int64_t channel) const {
  return shape_.key_channels > 0 && channel % (shape_.head_dim / 2) >= shape_.key_channels / 2;
}

double World::stored(bool keys, std::int64_t sequence, std::int64_t position, std::int64_t head, std::int64_t d) const {
  const std::uint64_t seed = pieces_[static_cast<std::size_t>(sequence)].seed;
  const double x = keys ? content_.key(seed, position, head, d) : content_.value(seed, position, head, d);
  if (storage_.element == abi::DType::f32) return static_cast<double>(static_cast<float>(x));
  if (storage_.element == abi::DType::bf16) {
    return static_cast<double>(sdk::bf16_to_float(sdk::float_to_bf16(static_cast<float>(x))));
  }
  const float scale = row_scale(keys, seed, position, head);
  return static_cast<double>(code_of(x, scale)) * static_cast<double>(scale);
}

void World::reference_row(std::int64_t sequence, std::int64_t token, std::int64_t head, double* result,
                          double* tolerance) const {
  const Piece& piece = pieces_[static_cast<std::size_t>(sequence)];
  const std::int64_t dim = shape_.head_dim;
  const std::int64_t kv_head = head / (shape_.query_heads / shape_.kv_heads);
  const std::int64_t position = piece.first + token;
  const std::int64_t begin = sdk::window_begin(position, shape_.window);
  const float* query =
      queries_.data() + ((token_begin_[static_cast<std::size_t>(sequence)] + token) * shape_.query_heads + head) * dim;
  std::vector<double> scores;
  double largest = -std::numeric_limits<double>::infinity();
  double magnitude = 0.0;  // largest sum of |q k| over the keys
  for (std::int64_t p = begin; p <= position; ++p) {
    double score = 0.0;
    double absolute = 0.0;
    for (std::int64_t d = 0; d < dim; ++d) {
      const double product = static_cast<double>(query[d]) * stored(!value_stands_for(d), sequence, p, kv_head, d);
      score += product;
      absolute += std::abs(product);
    }
    scores.push_back(score * static_cast<double>(shape_.scale));
    magnitude = std::max(magnitude, absolute * std::abs(static_cast<double>(shape_.scale)));
    largest = std::max(largest, scores.back());
  }
  double sum = 0.0;
  for (double& score : scores) sum += score = std::exp(score - largest);
  std::vector<double> absolute(static_cast<std::size_t>(dim), 0.0);
  std::fill(result, result + dim, 0.0);
  for (std::int64_t p = begin; p <= position; ++p) {
    const double weight = scores[static_cast<std::size_t>(p - begin)] / sum;
    for (std::int64_t d = 0; d < dim; ++d) {
      const double value = stored(false, sequence, p, kv_head, d);
      result[d] += weight * value;
      absolute[static_cast<std::size_t>(d)] += weight * std::abs(value);
    }
  }
  // Unit roundoff u = 2^-24. A chain of n roundings errs by at most 4 sqrt(n) u of the sum of magnitudes with
  // overwhelming probability (Higham and Mary 2019, lambda = 4). Scores: chains of head_dim / 4 + 4 (four lanes are the
  // fewest); the error of a score is the relative error of its weight, in numerator and denominator. Sums: a chain a
  // key plus rescaling. exp: 2^-22 a weight, and one more for each rescaling of the running maximum (few).
  const double u = 0x1p-24;
  const auto keys = static_cast<double>(position - begin + 1);
  const double score_error = 4.0 * std::sqrt(static_cast<double>(dim) / 4.0 + 4.0) * u * magnitude;
  const double relative = 2.0 * score_error + 2.0 * 4.0 * std::sqrt(keys + 4.0) * u + 8.0 * 0x1p-22;
  for (std::int64_t d = 0; d < dim; ++d) tolerance[d] = relative * absolute[static_cast<std::size_t>(d)] + 1e-30;
}

void World::reference(std::vector<double>& result, std::vector<double>& tolerance) const {
  result.assign(queries_.size(), 0.0);
  tolerance.assign(queries_.size(), 0.0);
  for (std::int64_t s = 0; s < batch_.sequence_count; ++s) {
    for (std::int64_t token = 0; token < pieces_[static_cast<std::size_t>(s)].tokens; ++token) {
      for (std::int64_t head = 0; head < shape_.query_heads; ++head) {
        const std::int64_t at =
            ((token_begin_[static_cast<std::size_t>(s)] + token) * shape_.query_heads + head) * shape_.head_dim;
        reference_row(s, token, head, result.data() + at, tolerance.data() + at);
      }
    }
  }
}

std::vector<float> World::run(const AttentionPlugin& plugin) const {
  const std::int64_t width = shape_.query_heads * shape_.head_dim;
  const std::int64_t stride = width + 5;
  std::vector<std::uint32_t> out(static_cast<std::size_t>((batch_.token_count + 2) * stride), kCanary);
  Lines error;
  abi::AttentionPlan plan{};
  EXPECT_EQ(plugin->plan(problem_, &plan, error.sink()), abi::Status::ok) << error.joined();
  // Dirty and deliberately at an address that is only a multiple of 16.
  std::vector<std::byte> memory(plan.workspace_bytes + 2 * kGuardBytes + 16, std::byte{0xff});
  std::byte* workspace = memory.data() + kGuardBytes + 16;
  abi::AttentionArgs args{};
  args.size = sizeof args;
  args.batch = &batch_;
  args.kv = &view_;
  args.queries = queries_.data();
  args.query_stride = width;
  args.output = out.data() + stride;
  args.output_stride = stride;
  args.workspace = {workspace, plan.workspace_bytes};
  EXPECT_EQ(plugin->run(plan, args, error.sink()), abi::Status::ok) << error.joined();
  plugin->release(&plan);
  EXPECT_EQ(plan.handle, nullptr);
  for (const std::byte* at = memory.data(); at < workspace; ++at) EXPECT_EQ(*at, std::byte{0xff});
  for (const std::byte* at = workspace + args.workspace.bytes; at < memory.data() + memory.size(); ++at) {
    EXPECT_EQ(*at, std::byte{0xff}) << "written past the workspace";
  }
  std::vector<float> result(static_cast<std::size_t>(batch_.token_count * width));
  for (std::int64_t i = 0; i < static_cast<std::int64_t>(out.size()); ++i) {
    const std::int64_t row = i / stride - 1;
    const std::int64_t column = i % stride;
    const std::uint32_t bits = out[static_cast<std::size_t>(i)];
    if (row >= 0 && row < batch_.token_count && column < width) {
      result[static_cast<std::size_t>(row * width + column)] = std::bit_cast<float>(bits);
    } else if (bits != kCanary) {
      ADD_FAILURE() << "written outside the output at row " << row << " column " << column;
    }
  }
  return result;
}

}  // namespace facet::test
