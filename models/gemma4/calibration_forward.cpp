#include "gemma4/calibration_forward.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace facet::gemma4 {
namespace {

// Queries whose scores are in memory at once.
constexpr std::int64_t kQueryRows = 64;

std::int64_t query_width(const ModelConfig& model, const LayerConfig& layer) {
  return model.query_heads * layer.head_dim;
}

std::int64_t widest_queries(const ModelConfig& model) {
  std::int64_t widest = 0;
  for (const LayerConfig& layer : model.layers) widest = std::max(widest, query_width(model, layer));
  return widest;
}

std::size_t area(std::int64_t a, std::int64_t b) {
  return static_cast<std::size_t>(a * b);
}

// scores[first_visible, end) become probabilities, the others 0.
void softmax(float* scores, std::int64_t first_visible, std::int64_t end, std::int64_t width) {
  const float largest = *std::max_element(scores + first_visible, scores + end);
  float sum = 0;
  for (std::int64_t key = first_visible; key < end; ++key) sum += scores[key] = std::exp(scores[key] - largest);
  for (std::int64_t key = first_visible; key < end; ++key) scores[key] /= sum;
  std::fill(scores, scores + first_visible, 0.0f);
  std::fill(scores + end, scores + width, 0.0f);
}

}  // namespace

StageModules stage_modules(const CheckpointFacts& facts, std::size_t layer, LayerStage stage) {
  const ModelConfig& model = facts.model;
  const LayerConfig& config = model.layers[layer];
  const std::string base = fmt::format("{}layers.{}.", facts.prefix, layer);
  const std::int64_t queries = query_width(model, config), keys = config.kv_heads * config.head_dim;
  StageModules made;
  switch (stage) {
    case LayerStage::attention_input:
      made = {{{base + "self_attn.q_proj", queries}, {base + "self_attn.k_proj", keys}}, model.hidden};
      if (!config.values_from_keys) made.modules.push_back({base + "self_attn.v_proj", keys});
      break;
    case LayerStage::attention_output:
      made = {{{base + "self_attn.o_proj", model.hidden}}, queries};
      break;
    case LayerStage::feed_forward_input:
      made = {{{base + "mlp.gate_proj", model.feed_forward}, {base + "mlp.up_proj", model.feed_forward}}, model.hidden};
      break;
    case LayerStage::feed_forward_output:
      made = {{{base + "mlp.down_proj", model.hidden}}, model.feed_forward};
      break;
  }
  return made;
}

void check_sequences(const ModelConfig& model, const std::vector<std::vector<std::int32_t>>& sequences) {
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    if (static_cast<std::int64_t>(sequences[i].size()) > model.max_positions) {
      throw_error(ErrorKind::usage, "sequence {} has {} tokens, the model has {} positions; shorten it", i + 1,
                  sequences[i].size(), model.max_positions);
    }
    for (const std::int32_t id : sequences[i]) {
      if (id < 0 || id >= model.vocabulary) {
        throw_error(ErrorKind::usage, "sequence {}: id {} is outside of the vocabulary of {}", i + 1, id,
                    model.vocabulary);
      }
    }
  }
}

CalibrationForward::CalibrationForward(const CheckpointFacts& facts, const Checkpoint& checkpoint, Backend& backend,
                                       const MatrixProducts& products,
                                       const std::vector<std::vector<std::int32_t>>& sequences)
    : facts_(facts),
      checkpoint_(checkpoint),
      backend_(backend),
      products_(products),
      ids_(sequences),
      hidden_(sequences.size()),
      attention_(sequences.size()) {
  check_sequences(facts.model, sequences);
}

std::int64_t CalibrationForward::tokens(std::size_t sequence) const {
  return static_cast<std::int64_t>(ids_[sequence].size());
}

void CalibrationForward::embed(std::size_t sequence, const abi::WeightView& table) {
  hidden_[sequence].resize(area(tokens(sequence), facts_.model.hidden));
  backend_.embed(table, ids_[sequence].data(), nullptr, tokens(sequence), facts_.model.embedding_scale,
                 hidden_[sequence].data());
}

void CalibrationForward::begin_layer(std::size_t layer) {
  layer_ = layer;
  const std::string base = fmt::format("{}layers.{}.", facts_.prefix, layer);
  const auto vector = [&](const char* name, std::int64_t count) {
    return load_vector(checkpoint_, base + name, count);
  };
  const std::int64_t hidden = facts_.model.hidden;
  norms_.input = vector("input_layernorm.weight", hidden);
  norms_.query = vector("self_attn.q_norm.weight", config().head_dim);
  norms_.key = vector("self_attn.k_norm.weight", config().head_dim);
  norms_.post_attention = vector("post_attention_layernorm.weight", hidden);
  norms_.pre_feed_forward = vector("pre_feedforward_layernorm.weight", hidden);
  norms_.post_feed_forward = vector("post_feedforward_layernorm.weight", hidden);
  norms_.scalar = vector("layer_scalar", 1).front();
  std::int64_t longest = 0;
  for (std::size_t i = 0; i < ids_.size(); ++i) longest = std::max(longest, tokens(i));
  std::vector<std::int32_t> positions(static_cast<std::size_t>(longest));
  std::iota(positions.begin(), positions.end(), 0);
  const std::vector<float> frequencies = inverse_frequencies(config());
  cosine_.resize(area(longest, config().rotary_live));
  sine_.resize(cosine_.size());
  backend_.rotary(positions.data(), longest, frequencies.data(), {config().rotary_live, cosine_.data(), sine_.data()});
}

void CalibrationForward::input(LayerStage stage, std::size_t sequence, const LayerMatrices& matrices,
                               float* out) const {
  const ModelConfig& model = facts_.model;
  const std::int64_t count = tokens(sequence);
  const float* hidden = hidden_[sequence].data();
  switch (stage) {
    case LayerStage::attention_input:
      backend_.rms_norm(hidden, norms_.input.data(), model.epsilon, count, model.hidden, out);
      break;
    case LayerStage::attention_output:
      std::copy(attention_[sequence].begin(), attention_[sequence].end(), out);
      break;
    case LayerStage::feed_forward_input:
      backend_.rms_norm(hidden, norms_.pre_feed_forward.data(), model.epsilon, count, model.hidden, out);
      break;
    case LayerStage::feed_forward_output: {
      const std::int64_t width = model.feed_forward;
      std::vector<float> normed(area(count, model.hidden)), gate_up(area(count, 2 * width));
      input(LayerStage::feed_forward_input, sequence, matrices, normed.data());
      for (std::size_t part = 0; part < 2; ++part) {
        products_.multiply_transposed(count, width, model.hidden, {normed.data(), model.hidden},
                                      {matrices[LayerStage::feed_forward_input][part].data(), model.hidden},
                                      {gate_up.data() + static_cast<std::int64_t>(part) * width, 2 * width});
      }
      backend_.gelu_gate(gate_up.data(), count, width, out);
      break;
    }
  }
}

void CalibrationForward::advance(LayerStage stage, std::size_t sequence, const LayerMatrices& matrices) {
  const std::int64_t count = tokens(sequence);
  switch (stage) {
    case LayerStage::attention_input:
      attend(sequence, matrices);
      break;
    case LayerStage::attention_output:
      add_projection(sequence, attention_[sequence].data(), query_width(facts_.model, config()),
                     matrices[stage].front(), norms_.post_attention, 1.0f);
      attention_[sequence] = {};
      break;
    case LayerStage::feed_forward_input:
      // Its outputs are computed again by the next stage: they would be the largest thing to keep.
      break;
    case LayerStage::feed_forward_output: {
      std::vector<float> inner(area(count, facts_.model.feed_forward));
      input(stage, sequence, matrices, inner.data());
      add_projection(sequence, inner.data(), facts_.model.feed_forward, matrices[stage].front(),
                     norms_.post_feed_forward, norms_.scalar);
      break;
    }
  }
}

void CalibrationForward::add_projection(std::size_t sequence, const float* x, std::int64_t width,
                                        const std::vector<float>& matrix, const std::vector<float>& post_norm,
                                        float scale) {
  const std::int64_t count = tokens(sequence), hidden = facts_.model.hidden;
  std::vector<float> update(area(count, hidden));
  products_.multiply_transposed(count, hidden, width, {x, width}, {matrix.data(), width}, {update.data(), hidden});
  backend_.rms_norm(update.data(), post_norm.data(), facts_.model.epsilon, count, hidden, update.data());
  std::vector<float>& state = hidden_[sequence];
  for (std::size_t i = 0; i < state.size(); ++i) state[i] = (state[i] + update[i]) * scale;
}

void CalibrationForward::project_heads(std::size_t sequence, const float* normed, const std::vector<float>& matrix,
                                       std::int64_t heads, const float* norm, bool rotate,
                                       std::vector<float>& out) const {
  const std::int64_t count = tokens(sequence), dim = config().head_dim, width = heads * dim;
  const std::int64_t hidden = facts_.model.hidden, live = config().rotary_live;
  out.resize(area(count, width));
  products_.multiply_transposed(count, width, hidden, {normed, hidden}, {matrix.data(), hidden}, {out.data(), width});
  backend_.rms_norm(out.data(), norm, facts_.model.epsilon, count * heads, dim, out.data());
  if (!rotate) return;
  for (std::int64_t row = 0; row < count * heads; ++row) {
    const float* cosine = cosine_.data() + row / heads * live;
    const float* sine = sine_.data() + row / heads * live;
    float* low = out.data() + row * dim;
    float* high = low + dim / 2;
    for (std::int64_t i = 0; i < live; ++i) {
      const float x = low[i], y = high[i];
      low[i] = x * cosine[i] - y * sine[i];
      high[i] = y * cosine[i] + x * sine[i];
    }
  }
}

void CalibrationForward::attend(std::size_t sequence, const LayerMatrices& matrices) {
  const LayerConfig& layer = config();
  const std::int64_t count = tokens(sequence), dim = layer.head_dim;
  const std::int64_t heads = facts_.model.query_heads, kv_heads = layer.kv_heads;
  const auto& stage = matrices[LayerStage::attention_input];
  std::vector<float> normed(area(count, facts_.model.hidden)), queries, keys, values;
  input(LayerStage::attention_input, sequence, matrices, normed.data());
  project_heads(sequence, normed.data(), stage[0], heads, norms_.query.data(), true, queries);
  project_heads(sequence, normed.data(), stage[1], kv_heads, norms_.key.data(), true, keys);
  project_heads(sequence, normed.data(), stage[layer.values_from_keys ? 1 : 2], kv_heads, nullptr, false, values);
  std::vector<float>& out = attention_[sequence];
  out.resize(queries.size());
  for (std::int64_t head = 0; head < heads; ++head) {
    const std::int64_t kv = head / (heads / kv_heads) * dim;
    attend_head(count, queries.data() + head * dim, heads * dim, keys.data() + kv, values.data() + kv, kv_heads * dim,
                out.data() + head * dim);
  }
}

// One head over a whole sequence; queries and outputs have the same stride. The scale of Gemma 4 is 1.
void CalibrationForward::attend_head(std::int64_t tokens, const float* query, std::int64_t query_stride,
                                     const float* keys, const float* values, std::int64_t key_stride,
                                     float* out) const {
  const std::int64_t dim = config().head_dim, window = config().window > 0 ? config().window : tokens;
  std::vector<float> scores;
  for (std::int64_t first = 0; first < tokens; first += kQueryRows) {
    const std::int64_t rows = std::min(kQueryRows, tokens - first);
    // Keys that any of these queries sees.
    const std::int64_t begin = std::max<std::int64_t>(0, first - window + 1), width = first + rows - begin;
    scores.resize(area(rows, width));
    products_.multiply_transposed(rows, width, dim, {query + first * query_stride, query_stride},
                                  {keys + begin * key_stride, key_stride}, {scores.data(), width});
    for (std::int64_t row = 0; row < rows; ++row) {
      const std::int64_t position = first + row;
      softmax(scores.data() + row * width, std::max<std::int64_t>(0, position - window + 1) - begin,
              position + 1 - begin, width);
    }
    products_.multiply(rows, dim, width, {scores.data(), width}, {values + begin * key_stride, key_stride},
                       {out + first * query_stride, query_stride});
  }
}

void CalibrationForward::head_input(std::size_t sequence, float* out) const {
  const std::int64_t hidden = facts_.model.hidden;
  const std::vector<float> norm = load_vector(checkpoint_, facts_.prefix + "norm.weight", hidden);
  backend_.rms_norm(hidden_[sequence].data(), norm.data(), facts_.model.epsilon, tokens(sequence), hidden, out);
}

std::uint64_t CalibrationForward::state_bytes(const CheckpointFacts& facts, std::int64_t tokens) {
  return area(tokens, facts.model.hidden + widest_queries(facts.model)) * sizeof(float);
}

std::uint64_t CalibrationForward::scratch_bytes(const CheckpointFacts& facts, std::int64_t tokens) {
  const ModelConfig& model = facts.model;
  std::int64_t attention = 0;
  for (const LayerConfig& layer : model.layers) {
    attention = std::max(attention, query_width(model, layer) + 2 * layer.kv_heads * layer.head_dim);
  }
  // Feed-forward: normed rows, gate and up, inner rows, update. Attention: normed rows, q, k, v, scores.
  const std::int64_t feed_forward = 2 * model.hidden + 3 * model.feed_forward;
  return area(tokens, std::max(feed_forward, model.hidden + attention) + kQueryRows) * sizeof(float);
}

}  // namespace facet::gemma4
