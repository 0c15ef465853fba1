// Open-addressing table from a pair of token ids to the merge that joins them.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace facet {

struct Merge {
  // Position in the file; the lowest rank merges first.
  std::uint32_t rank;
  std::int32_t id;
};

class PairTable {
 public:
  // Rank of an entry that is no merge itself but stands between two characters that some merge joins; see Bpe.
  static constexpr std::uint32_t kNoRank = 0xFFFFFFFFu;

  explicit PairTable(std::size_t expected = 0) { resize(std::bit_ceil(2 * expected + 16)); }

  // The entry or nullptr. A miss means that no merge ever crosses this pair when both are first symbols of a text.
  const Merge* find(std::int32_t left, std::int32_t right) const {
    const std::uint64_t key = key_of(left, right);
    for (std::size_t index = place(key);; index = (index + 1) & mask_) {
      if (slots_[index].key == key) return &slots_[index].merge;
      if (slots_[index].key == kEmpty) return nullptr;
    }
  }
  // Starts bringing the pair's entry into the cache.
  void prefetch(std::int32_t left, std::int32_t right) const {
    __builtin_prefetch(&slots_[place(key_of(left, right))]);
  }
  // The entry for the pair; made with kNoRank when new. The reference is valid until the next insert.
  Merge& insert(std::int32_t left, std::int32_t right) {
    if (2 * (count_ + 1) > slots_.size()) grow();
    const std::uint64_t key = key_of(left, right);
    std::size_t index = place(key);
    while (slots_[index].key != key && slots_[index].key != kEmpty) index = (index + 1) & mask_;
    if (slots_[index].key == kEmpty) {
      slots_[index] = {key, {kNoRank, -1}};
      ++count_;
    }
    return slots_[index].merge;
  }

 private:
  static constexpr std::uint64_t kEmpty = ~std::uint64_t{0};  // ids are never negative, so no pair has this key
  struct Slot {
    std::uint64_t key;
    Merge merge;
  };

  static std::uint64_t key_of(std::int32_t left, std::int32_t right) {
    return (static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32) | static_cast<std::uint32_t>(right);
  }
  std::size_t place(std::uint64_t key) const {
    // Ids of merges lie on a lattice; one multiplication leaves them in clusters, so the halves are mixed in between.
    key *= 0x9e3779b97f4a7c15ull;
    key ^= key >> 32;
    return static_cast<std::size_t>((key * 0xd6e8feb86659fd93ull) >> shift_);
  }
  void resize(std::size_t slots) {
    slots_.assign(slots, Slot{kEmpty, {kNoRank, -1}});
    mask_ = slots - 1;
    shift_ = 64 - std::countr_zero(slots);
    count_ = 0;
  }
  void grow() {
    std::vector<Slot> old = std::move(slots_);
    resize(2 * old.size());
    for (const Slot& slot : old) {
      if (slot.key == kEmpty) continue;
      std::size_t index = place(slot.key);
      while (slots_[index].key != kEmpty) index = (index + 1) & mask_;
      slots_[index] = slot;
      ++count_;
    }
  }

  std::vector<Slot> slots_;
  std::size_t mask_ = 0;
  std::size_t count_ = 0;
  int shift_ = 64;
};

}  // namespace facet
