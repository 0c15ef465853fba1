#include "token_table.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace facet {

std::uint64_t hash_bytes(std::string_view bytes) {
  constexpr std::uint64_t kMultiplier = 0x9e3779b97f4a7c15ull;  // 2^64 / golden ratio: odd, bits well spread
  std::uint64_t hash = bytes.size() * kMultiplier;
  std::size_t offset = 0;
  while (offset < bytes.size()) {
    const std::size_t count = std::min<std::size_t>(8, bytes.size() - offset);
    std::uint64_t chunk = 0;
    std::memcpy(&chunk, bytes.data() + offset, count);
    hash = (hash ^ chunk) * kMultiplier;
    hash ^= hash >> 29;
    offset += count;
  }
  hash *= kMultiplier;
  return hash ^ (hash >> 32);
}

TokenTable::Duplicate TokenTable::build(const std::vector<std::string_view>& tokens) {
  std::size_t bytes = 0;
  for (std::string_view token : tokens) bytes += token.size();
  arena_.clear();
  arena_.reserve(bytes);
  offsets_.assign(1, 0);
  offsets_.reserve(tokens.size() + 1);
  for (std::string_view token : tokens) {
    arena_ += token;
    offsets_.push_back(arena_.size());
  }
  slots_.assign(std::bit_ceil(2 * tokens.size() + 1), Slot{0, kNone});
  const std::size_t mask = slots_.size() - 1;
  for (std::int32_t id = 0; id < size(); ++id) {
    const std::string_view token = (*this)[id];
    const std::uint64_t hash = hash_bytes(token);
    const auto tag = static_cast<std::uint32_t>(hash >> 32);
    std::size_t index = hash & mask;
    for (; slots_[index].id != kNone; index = (index + 1) & mask) {
      if (slots_[index].tag == tag && (*this)[slots_[index].id] == token) return {slots_[index].id, id};
    }
    slots_[index] = {tag, id};
  }
  return {};
}

std::int32_t TokenTable::find(std::string_view token, std::uint64_t hash) const {
  if (slots_.empty()) return kNone;
  const std::size_t mask = slots_.size() - 1;
  const auto tag = static_cast<std::uint32_t>(hash >> 32);
  for (std::size_t index = hash & mask; slots_[index].id != kNone; index = (index + 1) & mask) {
    if (slots_[index].tag == tag && (*this)[slots_[index].id] == token) return slots_[index].id;
  }
  return kNone;
}

void TokenTable::find_batch(const std::string_view* tokens, std::size_t count, std::int32_t* ids) const {
  std::uint64_t hashes[kBatch];
  const std::size_t mask = slots_.size() - 1;
  for (std::size_t index = 0; index < count; ++index) {
    hashes[index] = hash_bytes(tokens[index]);
    __builtin_prefetch(&slots_[hashes[index] & mask]);
  }
  // The first slot is a guess at where the string is; a wrong guess costs a needless prefetch and nothing else.
  const auto guess = [&](std::size_t index) { return std::max(0, slots_[hashes[index] & mask].id); };
  for (std::size_t index = 0; index < count; ++index)
    __builtin_prefetch(&offsets_[static_cast<std::size_t>(guess(index))]);
  for (std::size_t index = 0; index < count; ++index) {
    __builtin_prefetch(arena_.data() + offsets_[static_cast<std::size_t>(guess(index))]);
  }
  for (std::size_t index = 0; index < count; ++index) ids[index] = find(tokens[index], hashes[index]);
}

}  // namespace facet
