#include "bpe.h"

#include <algorithm>
#include <functional>
#include <span>

namespace facet {

namespace {

constexpr std::uint32_t kNoRank = PairTable::kNoRank;

struct Symbol {
  std::int32_t id;
  std::int32_t previous;
  std::int32_t next;
  // The merge of this symbol with the next one; kNoRank where there is none or the symbol has been merged away.
  std::uint32_t rank;
  std::int32_t merged_id;
};

// Pieces up to this many symbols are merged by scanning for the lowest rank: for words that is faster than a heap, and
// the quadratic cost stays below a thousand steps.
constexpr std::size_t kScanLimit = 32;

// Merges one piece in place, lowest rank first and leftmost among equals.
class Merger {
 public:
  explicit Merger(const PairTable& pairs) : pairs_(pairs) {}

  void merge(std::span<const std::int32_t> piece, std::vector<std::int32_t>& ids) {
    if (piece.size() == 1) {
      ids.push_back(piece[0]);
      return;
    }
    symbols_.resize(piece.size());
    for (std::size_t index = 0; index < piece.size(); ++index) {
      const auto position = static_cast<std::int32_t>(index);
      const std::int32_t next = index + 1 < piece.size() ? position + 1 : -1;
      symbols_[index] = {piece[index], position - 1, next, kNoRank, -1};
    }
    for (std::size_t index = 0; index + 1 < piece.size(); ++index) look_up(symbols_[index]);
    if (piece.size() <= kScanLimit) {
      merge_by_scan();
    } else {
      merge_by_heap();
    }
    for (std::int32_t position = 0; position >= 0; position = at(position).next) ids.push_back(at(position).id);
  }

 private:
  Symbol& at(std::int32_t position) { return symbols_[static_cast<std::size_t>(position)]; }

  void look_up(Symbol& symbol) {
    const Merge* merge = symbol.next >= 0 ? pairs_.find(symbol.id, at(symbol.next).id) : nullptr;
    symbol.rank = merge != nullptr ? merge->rank : kNoRank;
    symbol.merged_id = merge != nullptr ? merge->id : -1;
  }

  // Joins the symbol with its right neighbour and looks up the two pairs that this changes.
  void join(std::int32_t position) {
    Symbol& symbol = at(position);
    Symbol& right = at(symbol.next);
    symbol.id = symbol.merged_id;
    symbol.next = right.next;
    right.rank = kNoRank;
    if (symbol.next >= 0) at(symbol.next).previous = position;
    look_up(symbol);
    if (symbol.previous >= 0) look_up(at(symbol.previous));
  }

  void merge_by_scan() {
    while (true) {
      std::int32_t best = -1;
      std::uint32_t best_rank = kNoRank;
      for (std::int32_t position = 0; position >= 0; position = at(position).next) {
        if (at(position).rank < best_rank) {
          best = position;
          best_rank = at(position).rank;
        }
      }
      if (best < 0) return;
      join(best);
    }
  }

  // Entries are never taken out when their pair changes; an entry counts only if its symbol still has that rank. Each
  // join adds at most two, so the whole costs n log n.
  void merge_by_heap() {
    heap_.clear();
    for (std::size_t index = 0; index < symbols_.size(); ++index) {
      if (symbols_[index].rank != kNoRank) heap_.push_back(entry(static_cast<std::int32_t>(index)));
    }
    std::make_heap(heap_.begin(), heap_.end(), std::greater<>());
    while (!heap_.empty()) {
      std::pop_heap(heap_.begin(), heap_.end(), std::greater<>());
      const std::uint64_t top = heap_.back();
      heap_.pop_back();
      const auto position = static_cast<std::int32_t>(top & 0xFFFFFFFFu);
      if (at(position).rank != static_cast<std::uint32_t>(top >> 32)) continue;
      join(position);
      push(position);
      if (at(position).previous >= 0) push(at(position).previous);
    }
  }
  // Rank above position, so that the smallest entry is the lowest rank and leftmost.
  std::uint64_t entry(std::int32_t position) {
    return (static_cast<std::uint64_t>(at(position).rank) << 32) | static_cast<std::uint32_t>(position);
  }
  void push(std::int32_t position) {
    if (at(position).rank == kNoRank) return;
    heap_.push_back(entry(position));
    std::push_heap(heap_.begin(), heap_.end(), std::greater<>());
  }

  const PairTable& pairs_;
  std::vector<Symbol> symbols_;
  std::vector<std::uint64_t> heap_;
};

}  // namespace

void CharacterIds::set(char32_t code_point, std::int32_t id) {
  std::uint16_t& page = pages_[code_point >> 8];
  if (page == 0) {
    page = static_cast<std::uint16_t>(ids_.size() / 256);
    ids_.resize(ids_.size() + 256, -1);
  }
  ids_[static_cast<std::size_t>(page) * 256 + (code_point & 0xFF)] = id;
}

CodePoint first_code_point(std::string_view text) {
  const auto byte = [&](std::size_t index) { return static_cast<char32_t>(static_cast<unsigned char>(text[index])); };
  const char32_t lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  if (lead < 0xE0) return {((lead & 0x1F) << 6) | (byte(1) & 0x3F), 2};
  if (lead < 0xF0) return {((lead & 0x0F) << 12) | ((byte(1) & 0x3F) << 6) | (byte(2) & 0x3F), 3};
  return {((lead & 0x07) << 18) | ((byte(1) & 0x3F) << 12) | ((byte(2) & 0x3F) << 6) | (byte(3) & 0x3F), 4};
}

void Bpe::first_symbols(std::string_view text, std::vector<std::int32_t>& symbols) const {
  bool unknown_before = false;
  while (!text.empty()) {
    const CodePoint character = first_code_point(text);
    const std::string_view bytes = text.substr(0, character.length);
    text.remove_prefix(character.length);
    const std::int32_t id = characters[character.value];
    if (id >= 0) {
      symbols.push_back(id);
      unknown_before = false;
      continue;
    }
    const auto has_token = [&](char byte) { return byte_ids[static_cast<unsigned char>(byte)] >= 0; };
    if (byte_fallback && std::all_of(bytes.begin(), bytes.end(), has_token)) {
      for (char byte : bytes) symbols.push_back(byte_ids[static_cast<unsigned char>(byte)]);
      unknown_before = false;
      continue;
    }
    if (!(fuse_unknown && unknown_before)) symbols.push_back(unknown_id);
    unknown_before = true;
  }
}

void Bpe::encode(std::string_view text, std::vector<std::int32_t>& ids) const {
  std::vector<std::int32_t> symbols;
  symbols.reserve(text.size());
  first_symbols(text, symbols);
  Merger merger(pairs);
  const std::span<const std::int32_t> all(symbols);
  std::size_t begin = 0;
  for (std::size_t end = 1; end <= symbols.size(); ++end) {
    const bool cut = end == symbols.size() || (cut_between && pairs.find(symbols[end - 1], symbols[end]) == nullptr);
    if (!cut) continue;
    merger.merge(all.subspan(begin, end - begin), ids);
    begin = end;
  }
}

}  // namespace facet
