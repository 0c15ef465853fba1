#include <fmt/format.h>

#include <array>

#include "facet/tokenizer/utf8.h"
#include "load.h"

namespace facet {

namespace {

bool is_single_character(std::string_view token) {
  return !token.empty() && first_code_point(token).length == token.size();
}

void index_characters(const JsonField& model, TokenizerData& data) {
  Bpe& bpe = data.bpe;
  bpe.byte_ids.fill(-1);
  for (std::int32_t id = 0; id < data.tokens.size(); ++id) {
    const std::string_view token = data.tokens[id];
    // A special token must never come out of text, not even when it is one character long.
    if (is_single_character(token) && data.special[static_cast<std::size_t>(id)] == 0) {
      bpe.characters.set(first_code_point(token).value, id);
    }
  }
  if (!bpe.byte_fallback) return;
  for (int byte = 0; byte < 256; ++byte) {
    const std::string name = fmt::format("<0x{:02X}>", byte);
    const std::int32_t id = data.tokens.find(name);
    if (id < 0) model.member("vocab").refuse(fmt::format("byte_fallback is on, but token '{}' is missing", name));
    bpe.byte_ids[static_cast<std::size_t>(byte)] = id;
  }
}

void read_settings(const JsonField& model, TokenizerData& data) {
  model.allow_only({"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk",
                    "byte_fallback", "ignore_merges", "vocab", "merges"});
  const std::string_view type = model.member("type").text();
  if (type != "BPE") model.member("type").refuse(fmt::format("'{}' is not supported; only 'BPE' is", type));
  model.must_be_unset("dropout");
  model.must_be_unset("continuing_subword_prefix", true);
  model.must_be_unset("end_of_word_suffix", true);
  if (model.boolean_or("ignore_merges", false)) {
    model.member("ignore_merges").refuse("true is not supported; only false is");
  }
  data.bpe.byte_fallback = model.boolean_or("byte_fallback", false);
  data.bpe.fuse_unknown = model.boolean_or("fuse_unk", false);
  if (model.has("unk_token") && !model.member("unk_token").is_null()) {
    const std::string_view unknown = model.member("unk_token").text();
    data.bpe.unknown_id = data.tokens.find(unknown);
    if (data.bpe.unknown_id < 0) {
      model.member("unk_token").refuse(fmt::format("'{}' is not in the vocabulary", unknown));
    }
  } else if (!data.bpe.byte_fallback) {
    model.refuse("needs unk_token or byte_fallback; without either, characters outside the vocabulary have no id");
  }
}

struct MergePair {
  std::string_view left;
  std::string_view right;
};

// A merge is ["a", "b"], or "a b" in older files.
MergePair read_pair(simdjson::dom::element value, const JsonField& merges, std::size_t rank) {
  std::string_view joined;
  if (value.get(joined) == simdjson::SUCCESS) {
    const std::size_t space = joined.find(' ');
    if (space == std::string_view::npos || joined.find(' ', space + 1) != std::string_view::npos) {
      merges.refuse(fmt::format("entry {}: '{}' must be two tokens with one space between them", rank, joined));
    }
    return {joined.substr(0, space), joined.substr(space + 1)};
  }
  simdjson::dom::array array;
  MergePair pair;
  if (value.get(array) != simdjson::SUCCESS || array.size() != 2 || array.at(0).get(pair.left) != simdjson::SUCCESS ||
      array.at(1).get(pair.right) != simdjson::SUCCESS) {
    merges.refuse(fmt::format("entry {}: must be two strings or one string 'a b'", rank));
  }
  return pair;
}

std::string_view last_character(std::string_view token) {
  std::size_t begin = token.size() - 1;
  while (begin > 0 && (static_cast<unsigned char>(token[begin]) & 0xC0) == 0x80) --begin;
  return token.substr(begin);
}

// Marks the place between the two characters where this merge joins its tokens as one that text must not be cut at.
// Only tokens made of single-character tokens can come up here, so a character without a token makes no mark.
void mark_join(MergePair pair, Bpe& bpe) {
  if (pair.left.empty() || pair.right.empty()) return;
  const std::int32_t left = bpe.characters[first_code_point(last_character(pair.left)).value];
  const std::int32_t right = bpe.characters[first_code_point(pair.right).value];
  if (left >= 0 && right >= 0) bpe.pairs.insert(left, right);
}

// Takes merges in file order and looks their tokens up in batches.
class MergeLoader {
 public:
  MergeLoader(const JsonField& merges, TokenizerData& data) : merges_(merges), data_(data) {}

  void add(MergePair pair) {
    pending_[count_++] = pair;
    if (count_ == kPending) flush();
  }
  // Call once after the last add.
  void flush() {
    std::array<std::string_view, 3 * kPending> names;
    std::array<std::int32_t, 3 * kPending> ids;
    for (std::size_t index = 0; index < count_; ++index) {
      joined_[index].assign(pending_[index].left);
      joined_[index] += pending_[index].right;
      names[3 * index] = pending_[index].left;
      names[3 * index + 1] = pending_[index].right;
      names[3 * index + 2] = joined_[index];
    }
    data_.tokens.find_batch(names.data(), 3 * count_, ids.data());
    for (std::size_t index = 0; index < count_; ++index) data_.bpe.pairs.prefetch(ids[3 * index], ids[3 * index + 1]);
    for (std::size_t index = 0; index < count_; ++index, ++rank_) {
      for (std::size_t part = 0; part < 3; ++part) check_found(ids[3 * index + part], names[3 * index + part], part);
      insert(pending_[index], ids[3 * index], ids[3 * index + 1], ids[3 * index + 2]);
    }
    count_ = 0;
  }

 private:
  static constexpr std::size_t kPending = TokenTable::kBatch / 3;

  void check_found(std::int32_t id, std::string_view token, std::size_t part) const {
    constexpr const char* kParts[] = {"left", "right", "merged"};
    if (id < 0)
      merges_.refuse(fmt::format("entry {}: {} token '{}' is not in the vocabulary", rank_, kParts[part], token));
  }

  void insert(MergePair pair, std::int32_t left, std::int32_t right, std::int32_t merged) {
    Bpe& bpe = data_.bpe;
    mark_join(pair, bpe);
    for (const std::int32_t part : {left, right}) {
      if (part == bpe.unknown_id || byte_token_value(part == left ? pair.left : pair.right) >= 0)
        bpe.cut_between = false;
    }
    Merge& merge = bpe.pairs.insert(left, right);
    if (merge.rank != PairTable::kNoRank) {
      merges_.refuse(fmt::format("entry {}: '{}' and '{}' are already merged by entry {}", rank_, pair.left, pair.right,
                                 merge.rank));
    }
    // Text must not grow into a control token; see Tokenizer::encode.
    if (data_.special[static_cast<std::size_t>(merged)] == 0) merge = {rank_, merged};
  }

  const JsonField& merges_;
  TokenizerData& data_;
  std::array<MergePair, kPending> pending_;
  std::array<std::string, kPending> joined_;
  std::size_t count_ = 0;
  std::uint32_t rank_ = 0;
};

}  // namespace

int byte_token_value(std::string_view token) {
  if (token.size() != 6 || token.substr(0, 3) != "<0x" || token[5] != '>') return -1;
  int value = 0;
  for (char digit : token.substr(3, 2)) {
    int nibble = -1;
    if (digit >= '0' && digit <= '9') nibble = digit - '0';
    if (digit >= 'A' && digit <= 'F') nibble = digit - 'A' + 10;
    if (digit >= 'a' && digit <= 'f') nibble = digit - 'a' + 10;
    if (nibble < 0) return -1;
    value = value * 16 + nibble;
  }
  return value;
}

void load_model(const JsonField& document, TokenizerData& data) {
  const JsonField model = document.member("model");
  read_settings(model, data);
  index_characters(model, data);
  const JsonField merges = model.member("merges");
  std::size_t count = 0;
  for ([[maybe_unused]] simdjson::dom::element value : merges.array()) ++count;
  // Marks between characters come on top; there are few of them beside the merges of a real vocabulary.
  data.bpe.pairs = PairTable(count);
  MergeLoader loader(merges, data);
  std::size_t rank = 0;
  for (simdjson::dom::element value : merges.array()) {
    loader.add(read_pair(value, merges, rank++));
  }
  loader.flush();
}

}  // namespace facet
