#include "world.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <limits>
#include <mutex>
#include <random>

#include "facet/sdk/numeric.h"

namespace facet::test {

namespace {

constexpr std::uint16_t kUntouched = 0xffff;

std::size_t index(std::int64_t value) {
  return static_cast<std::size_t>(value);
}

}  // namespace

double work_of(const CudaShape& shape, const std::vector<Piece>& pieces) {
  constexpr std::int64_t kRowsOfABlock = 64;  // what a block costs without any keys
  std::int64_t keys = 0;                      // as often as 16 rows are multiplied by them
  for (const Piece& piece : pieces) {
    const std::int64_t rows = piece.tokens * (shape.query_heads / shape.kv_heads);
    const std::int64_t reach = shape.window == 0 ? piece.first + piece.tokens
                                                 : std::min(piece.first + piece.tokens, shape.window + piece.tokens);
    keys += sdk::round_up(rows, 16) / 16 * (sdk::round_up(reach, 64) + kRowsOfABlock);
  }
  return static_cast<double>(keys * shape.kv_heads * shape.head_dim);
}

CudaWorld::CudaWorld(const CudaShape& shape, const CudaStorage& storage, std::vector<Piece> pieces, std::uint64_t seed,
                     bool whole, std::int64_t reach)
    : shape_(shape), storage_(storage), pieces_(std::move(pieces)), seed_(seed) {
  std::int64_t tokens = 0;
  std::int64_t most_tokens = 1;
  reach_ = std::max<std::int64_t>(reach, 1);
  for (const Piece& piece : pieces_) {
    tokens += piece.tokens;
    most_tokens = std::max(most_tokens, piece.tokens);
    reach_ = std::max(reach_, piece.first + piece.tokens);
  }
  const std::int64_t width = shape_.query_heads * shape_.head_dim;
  query_stride_ = width + 24;  // queries lie between other things in a fused projection
  output_stride_ = width + 6;
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<float> uniform(-1.0f, 1.0f);
  queries_.assign(index((tokens + 1) * query_stride_), kUntouched);
  for (std::int64_t token = 0; token < tokens; ++token) {
    for (std::int64_t i = 0; i < width; ++i) {
      queries_[index(token * query_stride_ + i)] = sdk::float_to_bf16(uniform(random));
    }
  }
  place(reach_, most_tokens, whole);
  sequences_.resize(pieces_.size());
  for (std::int64_t s = 0; s < static_cast<std::int64_t>(pieces_.size()); ++s) {
    const Piece& piece = pieces_[index(s)];
    if (piece.tokens == 0 && !whole) continue;
    const std::int64_t begin = whole ? 0 : sdk::window_begin(piece.first, shape_.window);
    make_sequence(s, begin, whole ? reach_ : piece.first + piece.tokens, random());
  }
  upload();
  problem_.max_step_tokens = std::max<std::int64_t>(1, tokens);
  set_pieces(pieces_);
}

void CudaWorld::place(std::int64_t longest, std::int64_t most_tokens, bool whole) {
  const auto sequences = static_cast<std::int64_t>(pieces_.size());
  std::int64_t rows = storage_.block_rows;
  if (storage_.addressing == abi::KvAddressing::contiguous) rows = longest + 3;
  if (storage_.addressing == abi::KvAddressing::ring) {
    rows = (shape_.window > 0 && !whole ? shape_.window + most_tokens - 1 : longest) + storage_.spare_rows;
    host_view_.ring_rows = rows;
  }
  problem_.size = sizeof problem_;
  problem_.device = abi::Device::cuda;
  problem_.input = problem_.output = abi::DType::bf16;
  problem_.query_heads = shape_.query_heads;
  problem_.kv_heads = shape_.kv_heads;
  problem_.head_dim = shape_.head_dim;
  problem_.key_channels = shape_.key_channels;
  problem_.window = shape_.window;
  problem_.scale = shape_.sharpness / std::sqrt(static_cast<float>(shape_.head_dim));
  problem_.max_sequences = sequences;
  problem_.max_context = longest;
  problem_.layout.size = sizeof problem_.layout;
  problem_.layout.addressing = storage_.addressing;
  problem_.layout.order = storage_.order;
  problem_.layout.element = storage_.element;
  problem_.layout.scales = storage_.element == abi::DType::i8 ? abi::KvScales::per_row_head : abi::KvScales::none;
  problem_.layout.block_rows = static_cast<std::uint32_t>(rows);
  problem_.layout.alignment = 64;
  const bool paged = storage_.addressing == abi::KvAddressing::paged;
  host_view_.size = sizeof host_view_;
  host_view_.layout = problem_.layout;
  host_view_.kv_heads = shape_.kv_heads;
  host_view_.head_dim = shape_.head_dim;
  host_view_.key_channels = shape_.key_channels;
  host_view_.table_stride = paged ? sdk::ceil_div(longest, rows) + 1 : 1;
  table_.assign(index(sequences * host_view_.table_stride), -1);
  // Ids descend and skip, so that neighbouring blocks of a sequence are never neighbours in memory.
  std::int32_t blocks = 1;
  for (std::int64_t s = 0; s < sequences; ++s) {
    const Piece& piece = pieces_[index(s)];
    if (piece.tokens == 0 && !whole) continue;
    const std::int64_t first = paged && !whole ? sdk::window_begin(piece.first, shape_.window) / rows : 0;
    const std::int64_t last = paged ? ((whole ? longest : piece.first + piece.tokens) - 1) / rows : 0;
    for (std::int64_t b = last; b >= first; --b) {
      table_[index(s * host_view_.table_stride + b)] = blocks;
      blocks += 2;
    }
  }
  const sdk::KvStrides strides =
      sdk::kv_strides(host_view_.layout, shape_.kv_heads, sdk::kv_row_width(shape_.head_dim, shape_.key_channels));
  sdk::set_strides(host_view_, strides);
  host_view_.block_table = table_.data();
  keys_.assign(index(blocks * strides.block * sdk::element_bytes(storage_.element)), 0xff);
  values_ = keys_;
  if (storage_.element != abi::DType::i8) return;
  key_scales_.assign(index(blocks * strides.scale_block), std::numeric_limits<float>::quiet_NaN());
  value_scales_ = key_scales_;
}

void CudaWorld::make_sequence(std::int64_t sequence, std::int64_t begin, std::int64_t end, std::uint64_t seed) {
  Sequence& made = sequences_[index(sequence)];
  const std::int64_t dim = shape_.head_dim;
  made.keys.assign(index(end * shape_.kv_heads * dim), 0.0f);
  made.values = made.keys;
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<float> uniform(-1.0f, 1.0f);
  for (std::int64_t position = begin; position < end; ++position) {
    const sdk::KvRun run = sdk::kv_run(host_view_, sequence, position, position + 1);
    for (std::int64_t head = 0; head < shape_.kv_heads; ++head) {
      for (const bool is_key : {true, false}) {
        const float scale = 0.01f * (1.0f + 0.5f * uniform(random));
        if (storage_.element == abi::DType::i8) {
          (is_key ? key_scales_ : value_scales_)[index(run.scale_offset + head * host_view_.scale_head_stride)] = scale;
        }
        float* stored = (is_key ? made.keys : made.values).data() + (position * shape_.kv_heads + head) * dim;
        const bool shared = shape_.key_channels > 0;
        std::uint8_t* pool = (is_key && !shared ? keys_ : values_).data();
        for (std::int64_t d = 0; d < dim; ++d) {
          const std::int64_t in_half = d % (dim / 2), live = shape_.key_channels / 2;
          std::int64_t at = run.offset + head * host_view_.head_stride + d;
          const float x = uniform(random);
          if (is_key && shared) {
            if (in_half >= live) continue;  // the value's
            at += dim - d + (d < dim / 2 ? in_half : live + in_half);
          }
          if (storage_.element == abi::DType::i8) {
            const auto code = static_cast<std::int8_t>(std::lrint(x * 127.0f));
            reinterpret_cast<std::int8_t*>(pool)[at] = code;
            stored[d] = static_cast<float>(code) * scale;
          } else {
            reinterpret_cast<std::uint16_t*>(pool)[at] = sdk::float_to_bf16(x);
            stored[d] = sdk::bf16_to_float(sdk::float_to_bf16(x));
          }
        }
      }
      if (shape_.key_channels > 0) take_values(made, (position * shape_.kv_heads + head) * dim);
    }
  }
}

// Channels of the key at `row` that its value stands for.
void CudaWorld::take_values(Sequence& made, std::int64_t row) const {
  for (std::int64_t d = 0; d < shape_.head_dim; ++d) {
    if (d % (shape_.head_dim / 2) >= shape_.key_channels / 2) made.keys[index(row + d)] = made.values[index(row + d)];
  }
}

void CudaWorld::upload() {
  device_keys_ = std::make_unique<DeviceBuffer<std::uint8_t>>(keys_);
  device_values_ = std::make_unique<DeviceBuffer<std::uint8_t>>(values_);
  device_table_ = std::make_unique<DeviceBuffer<std::int32_t>>(table_);
  device_queries_ = std::make_unique<DeviceBuffer<std::uint16_t>>(queries_);
  token_begin_ = std::make_unique<DeviceBuffer<std::int32_t>>(pieces_.size() + 1);
  first_position_ = std::make_unique<DeviceBuffer<std::int32_t>>(pieces_.size());
  const auto tokens = static_cast<std::int64_t>(queries_.size()) / query_stride_ - 1;
  output_ = std::make_unique<DeviceBuffer<std::uint16_t>>(index((tokens + 2) * output_stride_));
  view_ = host_view_;
  view_.keys = device_keys_->data();
  view_.values = device_values_->data();
  if (shape_.key_channels > 0)
    view_.keys = device_values_->data() + shape_.head_dim * sdk::element_bytes(storage_.element);
  view_.block_table = device_table_->data();
  if (storage_.element != abi::DType::i8) return;
  device_key_scales_ = std::make_unique<DeviceBuffer<float>>(key_scales_);
  device_value_scales_ = std::make_unique<DeviceBuffer<float>>(value_scales_);
  view_.key_scales = device_key_scales_->data();
  view_.value_scales = device_value_scales_->data();
}

void CudaWorld::set_pieces(std::vector<Piece> pieces) {
  pieces_ = std::move(pieces);
  std::vector<std::int32_t> begin{0};
  std::vector<std::int32_t> first;
  batch_ = {};
  batch_.size = sizeof batch_;
  batch_.sequence_count = static_cast<std::int32_t>(pieces_.size());
  for (const Piece& piece : pieces_) {
    begin.push_back(begin.back() + static_cast<std::int32_t>(piece.tokens));
    first.push_back(static_cast<std::int32_t>(piece.first));
    batch_.max_new_tokens = std::max(batch_.max_new_tokens, piece.tokens);
    batch_.max_rows = std::max(batch_.max_rows, piece.first + piece.tokens);
  }
  batch_.token_count = begin.back();
  token_begin_->write(begin);
  first_position_->write(first);
  batch_.token_begin = token_begin_->data();
  batch_.first_position = first_position_->data();
}

abi::AttentionArgs CudaWorld::args() const {
  abi::AttentionArgs args{};
  args.size = sizeof args;
  args.batch = &batch_;
  args.kv = &view_;
  args.preparation = preparation_;
  if (preparation_ == nullptr) {
    args.queries = other_queries_ != nullptr ? other_queries_ : device_queries_->data();
    args.query_stride = other_queries_ != nullptr ? other_query_stride_ : query_stride_;
  }
  args.output = output_->data() + output_stride_;
  args.output_stride = output_stride_;
  return args;
}

void CudaWorld::set_queries(const void* queries, std::int64_t stride) {
  other_queries_ = queries;
  other_query_stride_ = stride;
  preparation_ = nullptr;
}

void CudaWorld::set_preparation(const abi::AttentionPreparation* preparation) {
  preparation_ = preparation;
}

std::vector<std::uint8_t> CudaWorld::cache() const {
  std::vector<std::uint8_t> all = device_keys_->read();
  const std::vector<std::uint8_t> values = device_values_->read();
  all.insert(all.end(), values.begin(), values.end());
  if (storage_.element != abi::DType::i8) return all;
  for (const DeviceBuffer<float>* scales : {device_key_scales_.get(), device_value_scales_.get()}) {
    const std::vector<float> read = scales->read();
    const auto* bytes = reinterpret_cast<const std::uint8_t*>(read.data());
    all.insert(all.end(), bytes, bytes + read.size() * sizeof(float));
  }
  return all;
}

void CudaWorld::reset_cache() {
  device_keys_->write(keys_);
  device_values_->write(values_);
  if (storage_.element != abi::DType::i8) return;
  device_key_scales_->write(key_scales_);
  device_value_scales_->write(value_scales_);
}

std::string CudaWorld::describe() const {
  std::string text = "seed " + std::to_string(seed_) + " heads " + std::to_string(shape_.query_heads) + "/" +
                     std::to_string(shape_.kv_heads) + " dim " + std::to_string(shape_.head_dim) + " key channels " +
                     std::to_string(shape_.key_channels) + " window " + std::to_string(shape_.window) + " addressing " +
                     std::to_string(static_cast<int>(storage_.addressing)) + " order " +
                     std::to_string(static_cast<int>(storage_.order)) + " element " +
                     std::to_string(static_cast<int>(storage_.element)) + " pieces";
  for (const Piece& piece : pieces_) {
    text += " [" + std::to_string(piece.first) + " +" + std::to_string(piece.tokens) + ")";
  }
  return text;
}

void CudaWorld::reference_row(std::int64_t sequence, std::int64_t token, std::int64_t head, double* result,
                              double* tolerance) const {
  const std::int64_t dim = shape_.head_dim;
  const std::int64_t kv_head = head / (shape_.query_heads / shape_.kv_heads);
  std::int64_t row = token;
  for (std::int64_t s = 0; s < sequence; ++s) row += pieces_[index(s)].tokens;
  const std::uint16_t* query = queries_.data() + row * query_stride_ + head * dim;
  const std::int64_t position = pieces_[index(sequence)].first + token;
  const std::int64_t begin = sdk::window_begin(position, shape_.window);
  const Sequence& stored = sequences_[index(sequence)];
  const auto scale = static_cast<double>(problem_.scale);
  std::vector<double> weights;
  double largest = -std::numeric_limits<double>::infinity();
  double magnitude = 0.0;  // largest sum of |q k| over the keys
  for (std::int64_t p = begin; p <= position; ++p) {
    const float* key = stored.keys.data() + (p * shape_.kv_heads + kv_head) * dim;
    double score = 0.0;
    double absolute = 0.0;
    for (std::int64_t d = 0; d < dim; ++d) {
      const double product = static_cast<double>(sdk::bf16_to_float(query[d])) * static_cast<double>(key[d]);
      score += product;
      absolute += std::abs(product);
    }
    weights.push_back(score * scale);
    magnitude = std::max(magnitude, absolute * std::abs(scale));
    largest = std::max(largest, weights.back());
  }
  double sum = 0.0;
  for (double& weight : weights) sum += weight = std::exp(weight - largest);
  std::vector<double> absolute(index(dim), 0.0);
  std::fill(result, result + dim, 0.0);
  for (std::int64_t p = begin; p <= position; ++p) {
    const float* value = stored.values.data() + (p * shape_.kv_heads + kv_head) * dim;
    const double weight = weights[index(p - begin)] / sum;
    for (std::int64_t d = 0; d < dim; ++d) {
      result[d] += weight * static_cast<double>(value[d]);
      absolute[index(d)] += weight * std::abs(static_cast<double>(value[d]));
    }
  }
  // Weights are rounded to bf16 (unit roundoff 2^-8), the result once more. Sums are fp32; tensor cores may cut instead
  // of round, so one unit 2^-23 an addition: chains of head_dim / 16 a score and of keys a result, 4 sqrt(n) u of the
  // magnitudes (Higham and Mary 2019). exp2 errs by 2^-22 a weight.
  const double u = 0x1p-23;
  const auto keys = static_cast<double>(position - begin + 1);
  const double score_error = 4.0 * std::sqrt(static_cast<double>(dim)) * u * magnitude;
  const double relative = 0x1p-8 + 2.0 * score_error + 8.0 * std::sqrt(keys + 4.0) * u + 0x1p-19;
  for (std::int64_t d = 0; d < dim; ++d) {
    tolerance[d] = relative * absolute[index(d)] * 1.01 + 0x1p-8 * std::abs(result[d]) + 1e-30;
  }
}

bool CudaWorld::check_row(std::int64_t sequence, std::int64_t token, std::int64_t head, const std::uint16_t* row,
                          std::string& fault) const {
  std::vector<double> result(index(shape_.head_dim));
  std::vector<double> tolerance(result.size());
  reference_row(sequence, token, head, result.data(), tolerance.data());
  for (std::size_t d = 0; d < result.size(); ++d) {
    const auto got = static_cast<double>(sdk::bf16_to_float(row[d]));
    if (std::abs(got - result[d]) <= tolerance[d]) continue;  // false for NaN
    fault = "sequence " + std::to_string(sequence) + " token " + std::to_string(token) + " head " +
            std::to_string(head) + " element " + std::to_string(d) + " is " + std::to_string(got) + ", right is " +
            std::to_string(result[d]) + ", tolerance " + std::to_string(tolerance[d]);
    return false;
  }
  return true;
}

void CudaWorld::expect_right(const std::string& what) const {
  const std::vector<std::uint16_t> out = output();
  const std::int64_t width = shape_.query_heads * shape_.head_dim;
  struct Row {
    std::int64_t sequence, token, head, at;
  };
  std::vector<Row> rows;
  std::vector<bool> owned(out.size(), false);
  std::int64_t at = output_stride_;
  for (std::int64_t s = 0; s < batch_.sequence_count; ++s) {
    for (std::int64_t token = 0; token < pieces_[index(s)].tokens; ++token) {
      for (std::int64_t head = 0; head < shape_.query_heads; ++head) {
        rows.push_back({s, token, head, at + head * shape_.head_dim});
      }
      std::fill_n(owned.begin() + at, width, true);
      at += output_stride_;
    }
  }
  std::atomic<std::size_t> next{0};
  std::mutex mutex;
  std::vector<std::string> faults;
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < std::max(1u, std::thread::hardware_concurrency()); ++t) {
    threads.emplace_back([&] {
      for (std::size_t i = next.fetch_add(1); i < rows.size(); i = next.fetch_add(1)) {
        std::string fault;
        if (check_row(rows[i].sequence, rows[i].token, rows[i].head, out.data() + rows[i].at, fault)) continue;
        const std::lock_guard lock(mutex);
        faults.push_back(fault);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (!faults.empty()) {
    ADD_FAILURE() << what << ": " << describe() << ": " << faults.size() << " of " << rows.size()
                  << " rows are wrong; first: " << *std::min_element(faults.begin(), faults.end());
  }
  for (std::size_t i = 0; i < out.size(); ++i) {
    if (owned[i] || out[i] == kUntouched) continue;
    ADD_FAILURE() << what << ": " << describe() << ": written outside the output at " << i;
    return;
  }
}

}  // namespace facet::test
