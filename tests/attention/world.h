// A small world around attention: sequences whose queries, keys and values follow from a seed and a position, so the
// same sequence can be cut into chunks, batched and stored in any layout; a pool that holds them; the true result.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "test_host.h"

namespace facet::test {

struct Shape {
  std::int64_t query_heads = 2;
  std::int64_t kv_heads = 1;
  std::int64_t head_dim = 64;
  std::int64_t window = 0;
  float scale = 0.25f;
  std::int64_t key_channels = 0;  // more than 0: the shared form
};

struct Storage {
  abi::KvAddressing addressing = abi::KvAddressing::contiguous;
  abi::KvOrder order = abi::KvOrder::token_major;
  abi::DType element = abi::DType::f32;
  std::uint32_t block_rows = 16;  // paged; contiguous and ring blocks hold what the step needs
  std::int64_t spare_rows = 0;    // ring rows beyond window + chunk - 1
  int fill = 0xff;                // byte the pool starts with; 0xff is NaN in f32, bf16 and every scale
};

// Positions [first, first + tokens) of the endless sequence `seed`.
struct Piece {
  std::uint64_t seed = 1;
  std::int64_t first = 0;
  std::int64_t tokens = 1;
};

// Values in [-1, 1], the same for every storage except for the rounding of the element type.
struct Content {
  std::function<double(std::uint64_t seed, std::int64_t position, std::int64_t head, std::int64_t d)> query, key, value;
};
Content random_content();

std::string describe(const Shape& shape, const Storage& storage, const std::vector<Piece>& pieces);

abi::AttentionProblem make_problem(const Shape& shape, const Storage& storage, std::uint32_t block_rows,
                                   const std::vector<Piece>& pieces);

// Pool, block table and views of one step.
class World {
 public:
  World(const Shape& shape, const Storage& storage, std::vector<Piece> pieces, const Content& content);
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  // Plans, runs and checks canaries, workspace guards and statuses. [tokens, query_heads * head_dim]
  std::vector<float> run(const AttentionPlugin& plugin) const;
  // Exact result of the stored (rounded) keys and values, in double, and the largest error fp32 may make in each
  // number.
  void reference(std::vector<double>& result, std::vector<double>& tolerance) const;

  const abi::KvView& view() const { return view_; }
  abi::KvView& view() { return view_; }
  const abi::BatchView& batch() const { return batch_; }
  const abi::AttentionProblem& problem() const { return problem_; }
  const std::vector<float>& queries() const { return queries_; }

 private:
  void place();
  void write_row(std::int64_t sequence, std::int64_t position);
  // Channel of element d of a key; whether the value stands for the key's channel.
  std::int64_t channel_of(std::int64_t d) const;
  bool value_stands_for(std::int64_t channel) const;
  double stored(bool keys, std::int64_t sequence, std::int64_t position, std::int64_t head, std::int64_t d) const;
  void reference_row(std::int64_t sequence, std::int64_t token, std::int64_t head, double* result,
                     double* tolerance) const;

  Shape shape_;
  Storage storage_;
  std::vector<Piece> pieces_;
  Content content_;
  std::vector<std::int32_t> token_begin_, first_position_, table_;
  std::vector<float> queries_;
  std::vector<std::byte> keys_, values_;
  std::vector<float> key_scales_, value_scales_;
  abi::BatchView batch_{};
  abi::KvView view_{};
  abi::AttentionProblem problem_{};
};

}  // namespace facet::test
