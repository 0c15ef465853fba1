#include "synthetic_tokenizer.h"

#include <fmt/format.h>

#include <cstdio>
#include <random>
#include <stdexcept>
#include <string>
#include <unordered_set>
#include <vector>

namespace facet::bench {

namespace {

constexpr std::size_t kTokens = 262'144;  // Gemma's vocabulary
constexpr std::size_t kMerges = 500'000;  // about what Gemma's file has
constexpr int kAddedTokens = 64;          // control tokens and tags
constexpr unsigned kIdeographs = 5000;    // single-character tokens beside ASCII

std::string utf8(unsigned code) {
  std::string text;
  if (code < 0x80) {
    text += static_cast<char>(code);
  } else if (code < 0x800) {
    text += static_cast<char>(0xC0 | (code >> 6));
    text += static_cast<char>(0x80 | (code & 0x3F));
  } else {
    text += static_cast<char>(0xE0 | (code >> 12));
    text += static_cast<char>(0x80 | ((code >> 6) & 0x3F));
    text += static_cast<char>(0x80 | (code & 0x3F));
  }
  return text;
}

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (char character : text) {
    if (character == '"' || character == '\\') out += '\\';
    out += character;
  }
  return out + '"';
}

// Pieces that longer tokens are made of: letters and frequent groups of letters.
std::vector<std::string> units() {
  std::vector<std::string> all = {utf8(0x2581)};
  for (unsigned code = 'a'; code <= 'z'; ++code) all.push_back(utf8(code));
  for (const char* group : {"th", "er", "in", "on", "an", "re", "es", "st", "en", "at", "ou", "ti", "ar", "or", "al",
                            "le", "de", "co", "se"}) {
    all.emplace_back(group);
  }
  return all;
}

std::vector<std::string> make_tokens(unsigned seed) {
  std::vector<std::string> tokens;
  std::unordered_set<std::string> known;
  const auto add = [&](std::string token) {
    if (tokens.size() < kTokens && known.insert(token).second) tokens.push_back(std::move(token));
  };
  for (int index = 0; index < kAddedTokens; ++index) add(index == 2 ? "<bos>" : fmt::format("<control{}>", index));
  for (int byte = 0; byte < 256; ++byte) add(fmt::format("<0x{:02X}>", byte));
  for (unsigned code = 0x21; code < 0x7F; ++code) add(utf8(code));
  add(utf8(0x2581));
  for (unsigned code = 0x4E00; code < 0x4E00 + kIdeographs; ++code) add(utf8(code));
  const std::vector<std::string> parts = units();
  for (const std::string& one : parts) add(one);
  for (const std::string& one : parts) {
    for (const std::string& two : parts) add(one + two);
  }
  for (const std::string& one : parts) {
    for (const std::string& two : parts) {
      for (const std::string& three : parts) add(one + two + three);
    }
  }
  std::mt19937 random(seed);
  const auto pick = [&]() -> const std::string& { return parts[random() % parts.size()]; };
  while (tokens.size() < kTokens) {
    std::string token = pick();
    for (int count = 0; count < 3; ++count) token += pick();
    add(std::move(token));
  }
  return tokens;
}

// One merge for each token first, then the further ways to the same tokens that files converted from a scored
// vocabulary list as well.
std::vector<std::string> make_merges(const std::vector<std::string>& tokens) {
  const std::unordered_set<std::string> known(tokens.begin(), tokens.end());
  std::vector<std::string> merges;
  std::vector<std::string> further;
  for (std::size_t id = kAddedTokens + 256; id < tokens.size(); ++id) {
    bool first = true;
    for (std::size_t cut = 1; cut < tokens[id].size(); ++cut) {
      const std::string left = tokens[id].substr(0, cut);
      const std::string right = tokens[id].substr(cut);
      if (!known.contains(left) || !known.contains(right)) continue;
      (first ? merges : further)
          .push_back(fmt::format("      [\n        {},\n        {}\n      ]", quoted(left), quoted(right)));
      first = false;
    }
  }
  for (std::string& merge : further) {
    if (merges.size() < kMerges) merges.push_back(std::move(merge));
  }
  return merges;
}

}  // namespace

SyntheticSize write_synthetic_tokenizer(const std::filesystem::path& path, unsigned seed) {
  const std::vector<std::string> tokens = make_tokens(seed);
  const std::vector<std::string> merges = make_merges(tokens);
  std::string json = R"({"version":"1.0","truncation":null,"padding":null,"added_tokens":[)";
  for (int id = 0; id < kAddedTokens; ++id) {
    json += fmt::format(
        R"({}{{"id":{},"content":{},"single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":true}})",
        id == 0 ? "" : ",", id, quoted(tokens[static_cast<std::size_t>(id)]));
  }
  json +=
      R"(],"normalizer":{"type":"Replace","pattern":{"String":" "},"content":"▁"},"pre_tokenizer":null,)"
      R"("post_processor":{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<bos>","type_id":0}},)"
      R"({"Sequence":{"id":"A","type_id":0}}],"pair":[],"special_tokens":{"<bos>":{"id":"<bos>","ids":[2],"tokens":["<bos>"]}}},)"
      R"("decoder":{"type":"Sequence","decoders":[{"type":"Replace","pattern":{"String":"▁"},"content":" "},)"
      R"({"type":"ByteFallback"},{"type":"Fuse"}]},"model":{"type":"BPE","dropout":null,"unk_token":null,)"
      R"("continuing_subword_prefix":null,"end_of_word_suffix":null,"fuse_unk":true,"byte_fallback":true,)"
      R"("ignore_merges":false,"vocab":{)";
  for (std::size_t id = 0; id < tokens.size(); ++id) {
    json += fmt::format("{}\n      {}: {}", id == 0 ? "" : ",", quoted(tokens[id]), id);
  }
  json += R"(},"merges":[)";
  for (std::size_t rank = 0; rank < merges.size(); ++rank) {
    json += rank == 0 ? "\n" : ",\n";
    json += merges[rank];
  }
  json += "]}}";
  std::FILE* file = std::fopen(path.c_str(), "wb");
  if (file == nullptr) throw std::runtime_error("cannot write " + path.string());
  const bool written = std::fwrite(json.data(), 1, json.size(), file) == json.size();
  if (std::fclose(file) != 0 || !written) throw std::runtime_error("cannot write " + path.string());
  return {static_cast<int>(tokens.size()), static_cast<int>(merges.size())};
}

}  // namespace facet::bench
