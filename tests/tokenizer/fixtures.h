// What the tokenizer tests share: the reference file, the shipped tokenizer, and a tiny tokenizer.json to break.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "facet/base/error.h"
#include "facet/tokenizer/tokenizer.h"

namespace facet::test {

using Ids = std::vector<std::int32_t>;
using Json = nlohmann::ordered_json;

inline std::filesystem::path shipped_tokenizer_path() {
  return std::filesystem::path(FACET_SOURCE_DIR) / "models/gemma4/checkpoints/docs-5m/tokenizer.json";
}

inline const Tokenizer& shipped_tokenizer() {
  static const Tokenizer tokenizer = Tokenizer::load(shipped_tokenizer_path());
  return tokenizer;
}

inline Json read_json(const std::filesystem::path& path) {
  std::ifstream stream(path);
  return Json::parse(stream);
}

inline constexpr const char* kReplacement = "\xEF\xBF\xBD";  // U+FFFD
inline constexpr const char* kMark = "\xE2\x96\x81";         // U+2581

// The structure of the shipped file with a handful of tokens: ids 0..4 special, 5 an added token that is not special,
// 6..261 the bytes, then characters and merges.
inline Json tiny_document() {
  Json vocabulary = Json::object();
  std::int32_t next = 0;
  const auto token = [&](const std::string& text) { vocabulary[text] = next++; };
  const std::vector<std::string> contents = {"<pad>", "<bos>", "<unk>", "<|turn>", "<turn|>", "<code>"};
  for (const std::string& text : contents) token(text);
  for (int byte = 0; byte < 256; ++byte) token(fmt::format("<0x{:02X}>", byte));
  for (const char* text : {"a", "b", "c", kMark, "ab", "abc"}) token(text);
  token(std::string(kMark) + kMark);
  token(std::string(kMark) + "a");
  Json added = Json::array();
  for (std::size_t id = 0; id < contents.size(); ++id) {
    added.push_back({{"id", id},
                     {"content", contents[id]},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", id != 5}});
  }
  const Json space = {{"String", " "}};
  return {
      {"version", "1.0"},
      {"truncation", nullptr},
      {"padding", nullptr},
      {"added_tokens", added},
      {"normalizer", {{"type", "Replace"}, {"pattern", space}, {"content", kMark}}},
      {"pre_tokenizer", {{"type", "Split"}, {"pattern", space}, {"behavior", "MergedWithPrevious"}, {"invert", false}}},
      {"post_processor",
       {{"type", "TemplateProcessing"},
        {"single", Json::array({{{"SpecialToken", {{"id", "<bos>"}, {"type_id", 0}}}},
                                {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}})},
        {"pair", Json::array()},
        {"special_tokens",
         {{"<bos>", {{"id", "<bos>"}, {"ids", Json::array({1})}, {"tokens", Json::array({"<bos>"})}}}}}}},
      {"decoder",
       {{"type", "Sequence"},
        {"decoders", Json::array({{{"type", "Replace"}, {"pattern", {{"String", kMark}}}, {"content", " "}},
                                  {{"type", "ByteFallback"}},
                                  {{"type", "Fuse"}}})}}},
      {"model",
       {{"type", "BPE"},
        {"dropout", nullptr},
        {"unk_token", "<unk>"},
        {"continuing_subword_prefix", nullptr},
        {"end_of_word_suffix", nullptr},
        {"fuse_unk", true},
        {"byte_fallback", true},
        {"ignore_merges", false},
        {"vocab", vocabulary},
        {"merges", Json::array({Json::array({"a", "b"}), Json::array({"ab", "c"}), Json::array({kMark, kMark}),
                                Json::array({kMark, "a"})})}}},
  };
}

// "no error", or the message of the Error(checkpoint) that parsing throws.
inline std::string parse_error(const std::string& json) {
  try {
    Tokenizer::parse(json, "fixture.json");
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::checkpoint) << error.what();
    return error.what();
  }
  return "no error";
}

// Text of `length` random characters: ASCII, spaces, Latin, CJK, emoji and anything else that is a scalar value.
inline std::string random_text(std::mt19937_64& random, int length) {
  std::string text;
  for (int index = 0; index < length; ++index) {
    char32_t code = 0;
    switch (random() % 6) {
      case 0:
        code = ' ';
        break;
      case 1:
        code = static_cast<char32_t>('a' + random() % 26);
        break;
      case 2:
        code = static_cast<char32_t>(random() % 0x80);
        break;
      case 3:
        code = static_cast<char32_t>(0x80 + random() % 0x780);
        break;
      case 4:
        code = static_cast<char32_t>(0x800 + random() % 0xC000);
        break;
      default:
        code = static_cast<char32_t>(0x10000 + random() % 0x100000);
    }
    if (code == 0x2581) code = 0x2580;  // decodes to a space by design
    if (code < 0x80) {
      text += static_cast<char>(code);
    } else if (code < 0x800) {
      text += static_cast<char>(0xC0 | (code >> 6));
      text += static_cast<char>(0x80 | (code & 0x3F));
    } else if (code < 0x10000) {
      text += static_cast<char>(0xE0 | (code >> 12));
      text += static_cast<char>(0x80 | ((code >> 6) & 0x3F));
      text += static_cast<char>(0x80 | (code & 0x3F));
    } else {
      text += static_cast<char>(0xF0 | (code >> 18));
      text += static_cast<char>(0x80 | ((code >> 12) & 0x3F));
      text += static_cast<char>(0x80 | ((code >> 6) & 0x3F));
      text += static_cast<char>(0x80 | (code & 0x3F));
    }
  }
  return text;
}

}  // namespace facet::test
