#include "stub_model.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "facet/sampling/sampler.h"
#include "facet/sdk/kv_rows.h"

namespace facet::test {
namespace {

std::uint64_t mixed(std::uint64_t word) {
  word = (word ^ (word >> 30)) * 0xbf58476d1ce4e5b9u;
  word = (word ^ (word >> 27)) * 0x94d049bb133111ebu;
  return word ^ (word >> 31);
}

// Order matters, and so does which group a row came from.
std::uint64_t folded(std::uint64_t hash, std::int64_t id, std::int64_t position) {
  return mixed(hash * 31 + static_cast<std::uint64_t>(id * 1'000'003 + position + 1));
}

// Rows hold {id, position} in keys and {position, id} in values; all exact in f32.
void write_row(const abi::KvView& view, std::int32_t index, std::int64_t position, std::int32_t id) {
  const sdk::KvRun run = sdk::kv_run(view, index, position, position + 1);
  float* const key = static_cast<float*>(view.keys) + run.offset;
  float* const value = static_cast<float*>(view.values) + run.offset;
  key[0] = value[1] = static_cast<float>(id);
  key[1] = value[0] = static_cast<float>(position);
}

std::uint64_t fold_row(std::uint64_t hash, const abi::KvView& view, std::int32_t index, std::int64_t position) {
  const sdk::KvRun run = sdk::kv_run(view, index, position, position + 1);
  const float* const key = static_cast<const float*>(view.keys) + run.offset;
  const float* const value = static_cast<const float*>(view.values) + run.offset;
  // A row that was never written is NaN; -1 then stands for it and spoils the hash.
  const auto number = [](float x) { return std::isfinite(x) ? static_cast<std::int64_t>(x) : -1; };
  const bool consistent = key[0] == value[1] && key[1] == value[0];
  return folded(hash, consistent ? number(key[0]) : -1, number(key[1]));
}

}  // namespace

std::uint64_t context_hash(const Ids& ids, std::int64_t window) {
  const auto count = static_cast<std::int64_t>(ids.size());
  std::uint64_t hash = 17;
  for (std::int64_t i = std::max<std::int64_t>(0, count - window); i < count; ++i)
    hash = folded(hash, ids[static_cast<std::size_t>(i)], i);
  for (std::int64_t i = 0; i < count; ++i) hash = folded(hash, ids[static_cast<std::size_t>(i)], i);
  return hash;
}

std::vector<float> stub_logits(std::uint64_t hash) {
  std::vector<float> logits(static_cast<std::size_t>(kStubVocabulary));
  for (std::size_t i = 0; i < logits.size(); ++i)
    logits[i] = static_cast<float>(mixed(hash + 0x9e3779b97f4a7c15u * (i + 1)) >> 40) * (8.0f / 16'777'216.0f);
  logits[kPoisonId] = -1;  // only a prompt says it
  return logits;
}

Ids greedy_continuation(Ids prompt, std::int64_t count, std::int64_t window) {
  Ids output;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::vector<float> logits = stub_logits(context_hash(prompt, window));
    output.push_back(static_cast<std::int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin()));
    prompt.push_back(output.back());
  }
  return output;
}

StubModel::StubModel(std::vector<KvGroup> groups, std::int64_t max_sequences, Backend& backend,
                     std::int64_t max_step_tokens, std::int64_t window)
    : kv_(std::move(groups), max_sequences), max_step_tokens_(max_step_tokens), window_(window) {
  kv_.allocate(backend);
  for (KvGroup& group : kv_.groups()) std::memset(group.pool.data(), 0xff, group.pool.bytes());
}

// Layer 0 is the sliding one, layer 1 the global one.
std::uint64_t StubModel::read_context(std::int32_t index, std::int64_t position) {
  std::uint64_t hash = 17;
  for (std::int64_t i = std::max<std::int64_t>(0, position + 1 - window_); i <= position; ++i)
    hash = fold_row(hash, kv_.view(0), index, i);
  for (std::int64_t i = 0; i <= position; ++i) hash = fold_row(hash, kv_.view(1), index, i);
  return hash;
}

void StubModel::forward(const StepInput& input) {
  ++forwards;
  if (before_forward) before_forward(input);
  const abi::BatchView& batch = input.batch;
  const auto tokens = static_cast<std::size_t>(batch.token_count);
  hashes_.assign(tokens, 0);
  last_ids_.assign(input.ids, input.ids + tokens);
  for (std::int32_t& id : last_ids_) {
    if (id < 0) id = std::max(chosen_.at(static_cast<std::size_t>(-1 - id)), 0);
  }
  decodes_ = batch.max_new_tokens == 1 && input.all_logits;
  chunks.emplace_back();
  for (std::int32_t s = 0; s < batch.sequence_count; ++s)
    chunks.back().push_back(batch.token_begin[s + 1] - batch.token_begin[s]);
  for (std::int32_t turn = 0; turn < batch.sequence_count; ++turn) {
    const std::int32_t s = last_sequence_first ? batch.sequence_count - 1 - turn : turn;
    for (std::int32_t t = batch.token_begin[s]; t < batch.token_begin[s + 1]; ++t) {
      for (std::int32_t layer = 0; layer < 2; ++layer)
        write_row(kv_.view(layer), s, batch.first_position[s] + t - batch.token_begin[s],
                  last_ids_[static_cast<std::size_t>(t)]);
    }
    for (std::int32_t t = batch.token_begin[s]; t < batch.token_begin[s + 1]; ++t)
      hashes_[static_cast<std::size_t>(t)] = read_context(s, batch.first_position[s] + t - batch.token_begin[s]);
    const sdk::KvRun first = sdk::kv_run(kv_.view(1), s, 0, 1);
    Work& mine = work[static_cast<std::int32_t>(static_cast<const float*>(kv_.view(1).keys)[first.offset])];
    ++mine.calls;
    mine.tokens += batch.token_begin[s + 1] - batch.token_begin[s];
  }
}

std::vector<std::int32_t> StubModel::choose(std::span<const std::int32_t> rows, std::span<const RowSampling> how) {
  const float* values = logits(rows);
  std::vector<std::int32_t> ids;
  TokenDraw draw;
  for (std::size_t i = 0; i < rows.size(); ++i)
    ids.push_back(draw.choose({values + static_cast<std::int64_t>(i) * kStubVocabulary, kStubVocabulary}, how[i]));
  return ids;
}

bool StubModel::begin_choice(std::span<const RowSampling> how) {
  if (!decodes_) return false;
  std::vector<std::int32_t> rows(hashes_.size());
  std::iota(rows.begin(), rows.end(), 0);
  chosen_ = choose(rows, how);
  if (after_choice) after_choice(chosen_);
  return true;
}

const float* StubModel::logits(std::span<const std::int32_t> rows) {
  logits_.clear();
  for (const std::int32_t row : rows) {
    std::vector<float> one = stub_logits(hashes_[static_cast<std::size_t>(row)]);
    if (last_ids_[static_cast<std::size_t>(row)] == kPoisonId)
      std::fill(one.begin(), one.end(), std::numeric_limits<float>::quiet_NaN());
    logits_.insert(logits_.end(), one.begin(), one.end());
  }
  return logits_.data();
}

}  // namespace facet::test
