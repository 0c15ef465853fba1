// All token strings in one arena, by id, and the way back from a string to its id.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace facet {

// 64-bit hash of bytes, eight at a time: loading hashes some two million short strings, where byte-wise hashes are the
// cost.
std::uint64_t hash_bytes(std::string_view bytes);

class TokenTable {
 public:
  static constexpr std::int32_t kNone = -1;

  // Takes the tokens in id order. Returns the two ids of the first string that occurs twice, or {kNone, kNone}.
  struct Duplicate {
    std::int32_t first = kNone;
    std::int32_t second = kNone;
  };
  Duplicate build(const std::vector<std::string_view>& tokens);

  std::int32_t size() const { return static_cast<std::int32_t>(offsets_.size()) - 1; }
  // `id` must be in 0 .. size() - 1.
  std::string_view operator[](std::int32_t id) const {
    const auto index = static_cast<std::size_t>(id);
    return std::string_view(arena_).substr(offsets_[index], offsets_[index + 1] - offsets_[index]);
  }
  // Id of the string or kNone.
  std::int32_t find(std::string_view token) const { return find(token, hash_bytes(token)); }
  // Ids, or kNone, of `count` strings at once. Each look-up waits for three reads that depend on each other (slot,
  // offsets, bytes) and miss the near caches; here those of all strings overlap.
  static constexpr std::size_t kBatch = 48;
  void find_batch(const std::string_view* tokens, std::size_t count, std::int32_t* ids) const;

 private:
  std::int32_t find(std::string_view token, std::uint64_t hash) const;

  // The tag is the upper half of the hash: a slot whose tag differs is passed over without touching the arena.
  struct Slot {
    std::uint32_t tag;
    std::int32_t id;
  };
  std::string arena_;
  std::vector<std::size_t> offsets_{0};
  std::vector<Slot> slots_;
};

}  // namespace facet
