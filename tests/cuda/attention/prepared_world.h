// A decode step from raw projections: what the kernel makes of a preparation beside what the backend's own launch and
// a prepared call make of the same.
#pragma once

#include <functional>

#include "facet/backend/backend.h"
#include "runner.h"

namespace facet::test {

struct PreparedShape {
  bool values_from_keys = false;
  std::int64_t live = 0;       // pairs that turn; any number
  std::int64_t padding = 0;    // rows of the step that belong to no sequence
  bool aligned_angles = true;  // cosine and sine begin at multiples of 16 bytes
};

// Prepares attention as a backend does; returns when that is done.
using Prepare = std::function<void(const AttentionInput&)>;

class PreparedWorld {
 public:
  PreparedWorld(Prepare prepare, const AttentionPlugin& plugin, const CudaShape& shape, const CudaStorage& storage,
                std::vector<Piece> pieces, const PreparedShape& prepared, std::uint64_t seed, bool whole = false);

  // Output and cache of the fused call are those of the backend's launch and a prepared call, bit by bit, and so they
  // are a second time. Adds test failures.
  void expect_equal(const std::string& what);
  // The same for the replay of a fused call that was captured before.
  void capture();
  void expect_replay_equal(const std::string& what);
  void set_pieces(const std::vector<Piece>& pieces) { world_.set_pieces(pieces), pad(); }

  CudaWorld& world() { return world_; }
  const abi::AttentionProblem& fused_problem() const { return fused_problem_; }
  const abi::AttentionPreparation& preparation() const { return preparation_; }

 private:
  struct Outcome {
    std::vector<std::uint16_t> output;
    std::vector<std::uint8_t> cache;
    bool operator==(const Outcome&) const = default;
  };
  void pad();
  void make_inputs(std::uint64_t seed);
  Outcome separate();
  Outcome fused(bool replay);
  void compare(const Outcome& right, const Outcome& got, const std::string& what) const;

  Prepare prepare_;
  CudaShape shape_;
  PreparedShape prepared_;
  CudaWorld world_;
  abi::AttentionProblem problem_, fused_problem_;
  std::int64_t tokens_ = 0, stride_ = 0, backend_live_ = 0;
  std::unique_ptr<DeviceBuffer<std::uint16_t>> projections_, queries_;
  std::unique_ptr<DeviceBuffer<float>> query_norm_, key_norm_, cosine_, sine_, backend_cosine_, backend_sine_;
  std::unique_ptr<DeviceBuffer<std::int32_t>> positions_, sequence_;
  abi::AttentionPreparation preparation_{};
  std::unique_ptr<Runner> separate_, fused_;
};

}  // namespace facet::test
