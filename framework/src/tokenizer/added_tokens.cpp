#include "added_tokens.h"

namespace facet {

std::int32_t AddedTokens::child_of(std::int32_t node, unsigned char byte) const {
  std::int32_t child = nodes_[static_cast<std::size_t>(node)].child;
  while (child >= 0 && nodes_[static_cast<std::size_t>(child)].byte != byte) {
    child = nodes_[static_cast<std::size_t>(child)].sibling;
  }
  return child;
}

void AddedTokens::add(std::string_view content, std::int32_t id) {
  first_[static_cast<unsigned char>(content[0])] = true;
  std::int32_t node = 0;
  for (char character : content) {
    const auto byte = static_cast<unsigned char>(character);
    std::int32_t next = child_of(node, byte);
    if (next < 0) {
      next = static_cast<std::int32_t>(nodes_.size());
      Node made;
      made.sibling = nodes_[static_cast<std::size_t>(node)].child;
      made.byte = byte;
      nodes_.push_back(made);
      nodes_[static_cast<std::size_t>(node)].child = next;
    }
    node = next;
  }
  nodes_[static_cast<std::size_t>(node)].id = id;
}

AddedTokens::Match AddedTokens::find(std::string_view text, std::size_t from) const {
  for (std::size_t begin = from; begin < text.size(); ++begin) {
    if (!first_[static_cast<unsigned char>(text[begin])]) continue;
    Match best{begin, 0, -1};
    std::int32_t node = 0;
    for (std::size_t end = begin; end < text.size(); ++end) {
      node = child_of(node, static_cast<unsigned char>(text[end]));
      if (node < 0) break;
      const std::int32_t id = nodes_[static_cast<std::size_t>(node)].id;
      if (id >= 0) best = {begin, end + 1 - begin, id};
    }
    if (best.id >= 0) return best;
  }
  return {text.size(), 0, -1};
}

}  // namespace facet
