// One attention step on the device: sequences with random queries, keys and values in any layout, memory around them
// filled with NaN, and the exact result on the host.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "attention/test_host.h"
#include "device_memory.h"
#include "facet/sdk/kv_rows.h"

namespace facet::test {

struct CudaShape {
  std::int64_t query_heads = 16;
  std::int64_t kv_heads = 8;
  std::int64_t head_dim = 256;
  std::int64_t window = 0;
  float sharpness = 4.0f;         // scores lie in about [-sharpness, sharpness]; a negative one is a negative scale
  std::int64_t key_channels = 0;  // more than 0: the shared form of the cache
};

struct CudaStorage {
  abi::KvAddressing addressing = abi::KvAddressing::contiguous;
  abi::KvOrder order = abi::KvOrder::head_major;
  abi::DType element = abi::DType::bf16;
  std::uint32_t block_rows = 16;  // paged
  std::int64_t spare_rows = 0;    // ring rows beyond window + chunk - 1
};

struct Piece {
  std::int64_t first = 0;   // position of the first new token
  std::int64_t tokens = 1;  // new tokens
};

// How much there is to multiply, as the kernels do it: 16 rows at a time.
double work_of(const CudaShape& shape, const std::vector<Piece>& pieces);

class CudaWorld {
 public:
  // Keys and values of every position that a query of `pieces` may see; with `whole`, of every position below `reach`
  // (0: what the pieces need), so that set_pieces() may move within it.
  CudaWorld(const CudaShape& shape, const CudaStorage& storage, std::vector<Piece> pieces, std::uint64_t seed,
            bool whole = false, std::int64_t reach = 0);

  // Other positions behind the same pointers. Token counts may not pass those of the constructor.
  void set_pieces(std::vector<Piece> pieces);

  abi::AttentionArgs args() const;  // everything but stream and workspace
  // Queries of another buffer, or a preparation in their place, from here on.
  void set_queries(const void* queries, std::int64_t stride);
  void set_preparation(const abi::AttentionPreparation* preparation);
  const std::vector<Piece>& pieces() const { return pieces_; }
  const abi::AttentionProblem& problem() const { return problem_; }
  abi::BatchView& batch() { return batch_; }
  std::string describe() const;

  // Every element of the step near the exact result, everything around it untouched. Adds test failures.
  void expect_right(const std::string& what) const;
  std::vector<std::uint16_t> output() const { return output_->read(); }
  void poison_output() { output_->fill(0xff); }
  // Everything of the cache with its surroundings; and the state the constructor left.
  std::vector<std::uint8_t> cache() const;
  void reset_cache();

 private:
  struct Sequence {
    // As stored, [position, kv_head, head_dim]; in the shared form keys have the value where it stands for them.
    std::vector<float> keys, values;
  };
  void place(std::int64_t longest, std::int64_t most_tokens, bool whole);
  void make_sequence(std::int64_t sequence, std::int64_t begin, std::int64_t end, std::uint64_t seed);
  void take_values(Sequence& made, std::int64_t row) const;
  void upload();
  void reference_row(std::int64_t sequence, std::int64_t token, std::int64_t head, double* result,
                     double* tolerance) const;
  bool check_row(std::int64_t sequence, std::int64_t token, std::int64_t head, const std::uint16_t* row,
                 std::string& fault) const;

  CudaShape shape_;
  CudaStorage storage_;
  std::vector<Piece> pieces_;
  std::uint64_t seed_;
  std::int64_t reach_ = 0;
  std::int64_t query_stride_ = 0;
  std::int64_t output_stride_ = 0;
  std::vector<Sequence> sequences_;
  std::vector<std::uint16_t> queries_;
  std::vector<std::int32_t> table_;
  std::vector<std::uint8_t> keys_, values_;  // in the shared form all rows are in values_
  std::vector<float> key_scales_, value_scales_;
  abi::BatchView batch_{};
  abi::KvView view_{};       // on the device
  abi::KvView host_view_{};  // the same with host arrays
  abi::AttentionProblem problem_{};
  const void* other_queries_ = nullptr;
  std::int64_t other_query_stride_ = 0;
  const abi::AttentionPreparation* preparation_ = nullptr;
  std::unique_ptr<DeviceBuffer<std::uint8_t>> device_keys_, device_values_;
  std::unique_ptr<DeviceBuffer<float>> device_key_scales_, device_value_scales_;
  std::unique_ptr<DeviceBuffer<std::int32_t>> device_table_, token_begin_, first_position_;
  std::unique_ptr<DeviceBuffer<std::uint16_t>> device_queries_, output_;
};

}  // namespace facet::test
