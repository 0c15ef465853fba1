// Finds added tokens in raw text: leftmost, then longest, as the reference library does.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace facet {

class AddedTokens {
 public:
  struct Match {
    std::size_t begin;
    std::size_t length;
    std::int32_t id;  // -1: no match from here to the end
  };

  AddedTokens() { first_.fill(false); }
  // `content` must not be empty.
  void add(std::string_view content, std::int32_t id);
  // First match at or after `from`. Time: bytes passed times the longest token.
  Match find(std::string_view text, std::size_t from) const;

 private:
  // A trie of bytes. Nodes keep their children in a list: the fan-out of control tokens is small.
  struct Node {
    std::int32_t child = -1;
    std::int32_t sibling = -1;
    std::int32_t id = -1;
    unsigned char byte = 0;
  };
  std::int32_t child_of(std::int32_t node, unsigned char byte) const;

  std::vector<Node> nodes_ = std::vector<Node>(1);
  std::array<bool, 256> first_{};
};

}  // namespace facet
