#include "prepared_world.h"

#include <cmath>
#include <random>

#include "facet/sdk/numeric.h"

namespace facet::test {

namespace {

constexpr float kEpsilon = 1e-6f;

std::size_t index(std::int64_t value) {
  return static_cast<std::size_t>(value);
}

abi::AttentionProblem wider(abi::AttentionProblem problem, std::int64_t more_tokens, std::uint32_t fusions) {
  problem.max_step_tokens += more_tokens;
  problem.fusions = fusions;
  return problem;
}

}  // namespace

PreparedWorld::PreparedWorld(Prepare prepare, const AttentionPlugin& plugin, const CudaShape& shape,
                             const CudaStorage& storage, std::vector<Piece> pieces, const PreparedShape& prepared,
                             std::uint64_t seed, bool whole)
    : prepare_(std::move(prepare)),
      shape_(shape),
      prepared_(prepared),
      world_(shape, storage, std::move(pieces), seed, whole),
      problem_(wider(world_.problem(), prepared.padding, 0)),
      fused_problem_(wider(world_.problem(), prepared.padding, abi::kFusePreparation)),
      tokens_(problem_.max_step_tokens) {
  make_inputs(seed + 1);
  pad();
  separate_ = std::make_unique<Runner>(plugin, problem_);
  fused_ = std::make_unique<Runner>(plugin, fused_problem_);
}

void PreparedWorld::pad() {
  world_.batch().token_count = tokens_;
  std::vector<std::int32_t> positions, sequence;
  for (std::size_t s = 0; s < world_.pieces().size(); ++s) {
    const Piece& piece = world_.pieces()[s];
    if (piece.tokens == 0) continue;
    positions.push_back(static_cast<std::int32_t>(piece.first));
    sequence.push_back(static_cast<std::int32_t>(s));
  }
  positions.resize(index(tokens_), 0);
  sequence.resize(index(tokens_), -1);
  positions_->write(positions);
  sequence_->write(sequence);
}

void PreparedWorld::make_inputs(std::uint64_t seed) {
  const std::int64_t dim = shape_.head_dim;
  const std::int64_t width = (shape_.query_heads + (prepared_.values_from_keys ? 1 : 2) * shape_.kv_heads) * dim;
  stride_ = width + 8;
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<float> uniform(-1.0f, 1.0f);
  // Gaps between rows, and the rows of no sequence, stay NaN.
  std::vector<std::uint16_t> projections(index(tokens_ * stride_), 0xffff);
  const std::int64_t used = tokens_ - prepared_.padding;
  for (std::int64_t token = 0; token < used; ++token) {
    const float size = std::exp2(6.0f * uniform(random));
    for (std::int64_t i = 0; i < width; ++i)
      projections[index(token * stride_ + i)] = sdk::float_to_bf16(size * uniform(random));
  }
  projections_ = std::make_unique<DeviceBuffer<std::uint16_t>>(projections);
  queries_ = std::make_unique<DeviceBuffer<std::uint16_t>>(index(tokens_ * shape_.query_heads * dim));
  positions_ = std::make_unique<DeviceBuffer<std::int32_t>>(index(tokens_));
  sequence_ = std::make_unique<DeviceBuffer<std::int32_t>>(index(tokens_));
  std::vector<float> norm(index(dim));
  for (auto* buffer : {&query_norm_, &key_norm_}) {
    for (float& value : norm) value = 1.0f + 0.5f * uniform(random);
    *buffer = std::make_unique<DeviceBuffer<float>>(norm);
  }
  // The backend reads angles four at a time only where they come in fours: pairs past `live` turn by nothing there.
  backend_live_ = sdk::round_up(prepared_.live, 4);
  const std::int64_t shift = prepared_.aligned_angles ? 0 : 1;
  std::vector<float> cosine(index(tokens_ * prepared_.live + shift)), sine = cosine;
  std::vector<float> backend_cosine(index(tokens_ * backend_live_), 1.0f);
  std::vector<float> backend_sine(backend_cosine.size(), 0.0f);
  for (std::int64_t token = 0; token < tokens_; ++token) {
    for (std::int64_t i = 0; i < prepared_.live; ++i) {
      const float angle = 3.2f * uniform(random);
      const std::size_t at = index(token * prepared_.live + i + shift), other = index(token * backend_live_ + i);
      cosine[at] = backend_cosine[other] = std::cos(angle);
      sine[at] = backend_sine[other] = std::sin(angle);
    }
  }
  cosine_ = std::make_unique<DeviceBuffer<float>>(cosine);
  sine_ = std::make_unique<DeviceBuffer<float>>(sine);
  backend_cosine_ = std::make_unique<DeviceBuffer<float>>(backend_cosine);
  backend_sine_ = std::make_unique<DeviceBuffer<float>>(backend_sine);
  preparation_.size = sizeof preparation_;
  preparation_.values_from_keys = prepared_.values_from_keys ? 1 : 0;
  preparation_.projections = projections_->data();
  preparation_.projection_stride = stride_;
  preparation_.query_norm = query_norm_->data();
  preparation_.key_norm = key_norm_->data();
  preparation_.cosine = cosine_->data() + shift;
  preparation_.sine = sine_->data() + shift;
  preparation_.rotary_live = prepared_.live;
  preparation_.epsilon = kEpsilon;
}

PreparedWorld::Outcome PreparedWorld::separate() {
  world_.reset_cache();
  world_.set_queries(queries_->data(), shape_.query_heads * shape_.head_dim);
  AttentionInput input;
  input.projections = projections_->data();
  input.stride = stride_;
  input.query_heads = shape_.query_heads;
  input.kv_heads = shape_.kv_heads;
  input.head_dim = shape_.head_dim;
  input.values_from_keys = prepared_.values_from_keys;
  input.query_norm = query_norm_->data();
  input.key_norm = key_norm_->data();
  input.epsilon = kEpsilon;
  input.rotary = {backend_live_, backend_cosine_->data(), backend_sine_->data()};
  input.positions = positions_->data();
  input.sequence = sequence_->data();
  input.tokens = tokens_;
  input.kv = world_.args().kv;
  input.queries = queries_->data();
  queries_->fill(0xff);
  require_cuda(cudaDeviceSynchronize(), "before the preparation");
  prepare_(input);
  separate_->run(world_);
  return {world_.output(), world_.cache()};
}

PreparedWorld::Outcome PreparedWorld::fused(bool replay) {
  world_.reset_cache();
  world_.set_preparation(&preparation_);
  replay ? fused_->replay(world_) : fused_->run(world_);
  return {world_.output(), world_.cache()};
}

void PreparedWorld::capture() {
  world_.set_preparation(&preparation_);
  fused_->capture(world_);
}

void PreparedWorld::compare(const Outcome& right, const Outcome& got, const std::string& what) const {
  if (right == got) return;
  const auto first_difference = [](const auto& a, const auto& b) {
    return std::to_string(std::mismatch(a.begin(), a.end(), b.begin()).first - a.begin()) + " of " +
           std::to_string(a.size());
  };
  ADD_FAILURE() << what << ": " << world_.describe() << ", " << (prepared_.values_from_keys ? "values from keys, " : "")
                << prepared_.live << " pairs turn, " << prepared_.padding
                << " padding rows: first difference of output " << first_difference(right.output, got.output)
                << ", of the cache's bytes " << first_difference(right.cache, got.cache);
}

void PreparedWorld::expect_equal(const std::string& what) {
  const Outcome right = separate();
  for (std::uint16_t bits : right.output) {
    if (bits != 0xffff && !std::isfinite(sdk::bf16_to_float(bits))) {
      ADD_FAILURE() << what << ": the prepared call is not finite: " << world_.describe();
      break;
    }
  }
  compare(right, fused(false), what + ", fused");
  compare(right, fused(false), what + ", fused again");
}

void PreparedWorld::expect_replay_equal(const std::string& what) {
  const Outcome right = separate();
  compare(right, fused(true), what + ", replayed");
  compare(right, fused(false), what + ", eager");
}

}  // namespace facet::test
