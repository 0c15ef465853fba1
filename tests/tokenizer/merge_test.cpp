// The fast merge against a plain one that follows the definition: join the leftmost pair of lowest rank until none is
// left.
#include <map>

#include "fixtures.h"

namespace facet::test {
namespace {

class PlainBpe {
 public:
  explicit PlainBpe(const Json& document) {
    std::uint32_t rank = 0;
    for (const Json& merge : document.at("model").at("merges")) ranks_[{merge.at(0), merge.at(1)}] = rank++;
    for (const auto& [token, id] : document.at("model").at("vocab").items()) ids_[token] = id;
  }

  // `text` must be ASCII without spaces or be made of U+2581 and ASCII, all in the vocabulary.
  Ids encode(const std::string& text) const {
    std::vector<std::string> parts;
    for (std::size_t index = 0; index < text.size();) {
      const std::size_t length = static_cast<unsigned char>(text[index]) < 0x80 ? 1 : 3;
      parts.push_back(text.substr(index, length));
      index += length;
    }
    while (true) {
      std::size_t best = 0;
      std::uint32_t best_rank = 0xFFFFFFFF;
      for (std::size_t index = 0; index + 1 < parts.size(); ++index) {
        const auto found = ranks_.find({parts[index], parts[index + 1]});
        if (found == ranks_.end() || found->second >= best_rank) continue;
        best_rank = found->second;
        best = index;
      }
      if (best_rank == 0xFFFFFFFF) break;
      parts[best] += parts[best + 1];
      parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(best) + 1);
    }
    Ids ids;
    for (const std::string& part : parts) ids.push_back(ids_.at(part));
    return ids;
  }

 private:
  std::map<std::pair<std::string, std::string>, std::uint32_t> ranks_;
  std::map<std::string, std::int32_t> ids_;
};

std::string marked(std::string text) {
  for (std::size_t at; (at = text.find(' ')) != std::string::npos;) text.replace(at, 1, kMark);
  return text;
}

// Few distinct letters make many competing merges; long unbroken runs go past the limit where the heap takes over.
TEST(TokenizerMerge, EqualsThePlainAlgorithm) {
  const PlainBpe plain(read_json(shipped_tokenizer_path()));
  const std::string alphabets[] = {"aeinrst", " ", " =-", "ation", "abcdefghijklmnopqrstuvwxyz ", "\n ", "01 .(){}_"};
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    std::mt19937_64 random(seed);
    const std::string& alphabet = alphabets[random() % std::size(alphabets)];
    std::string text;
    const std::uint64_t length = random() % 150;
    for (std::uint64_t index = 0; index < length; ++index) text += alphabet[random() % alphabet.size()];
    ASSERT_EQ(shipped_tokenizer().encode(text, {false, false}), plain.encode(marked(text))) << "seed " << seed;
  }
}

// A random vocabulary: merges drawn from what exists so far, so that ranks do not follow length as in trained files.
TEST(TokenizerMerge, EqualsThePlainAlgorithmOnRandomVocabularies) {
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    std::mt19937_64 random(seed);
    Json document = tiny_document();
    Json& vocabulary = document["model"]["vocab"];
    std::vector<std::string> tokens = {"a", "b", "c", kMark, "ab", "abc"};
    std::vector<std::pair<std::string, std::string>> merges;
    for (int count = 0; count < 60; ++count) {
      const std::string left = tokens[random() % tokens.size()];
      const std::string right = tokens[random() % tokens.size()];
      if (left.size() + right.size() > 24) continue;
      if (std::find(merges.begin(), merges.end(), std::pair(left, right)) != merges.end()) continue;
      merges.emplace_back(left, right);
      if (!vocabulary.contains(left + right)) {
        const auto next = static_cast<std::int32_t>(vocabulary.size());
        vocabulary[left + right] = next;
        tokens.push_back(left + right);
      }
    }
    std::shuffle(merges.begin(), merges.end(), random);
    document["model"]["merges"] = Json::array();
    for (const auto& [left, right] : merges) document["model"]["merges"].push_back({left, right});
    const PlainBpe plain(document);
    const Tokenizer tokenizer = Tokenizer::parse(document.dump(), "random.json");
    for (int round = 0; round < 20; ++round) {
      std::string text;
      const std::uint64_t length = random() % 120;
      for (std::uint64_t index = 0; index < length; ++index) text += "abc "[random() % 4];
      ASSERT_EQ(tokenizer.encode(text, {false, false}), plain.encode(marked(text))) << "seed " << seed << " " << text;
    }
  }
}

TEST(TokenizerMerge, MergesMayBeStrings) {
  Json document = tiny_document();
  const Tokenizer pairs = Tokenizer::parse(document.dump(), "pairs.json");
  for (Json& merge : document["model"]["merges"]) {
    merge = std::string(merge.at(0)) + " " + std::string(merge.at(1));
  }
  const Tokenizer strings = Tokenizer::parse(document.dump(), "strings.json");
  for (const char* text : {"abc", "ab cab", "   a", "x", "caab  abc"}) {
    EXPECT_EQ(pairs.encode(text), strings.encode(text)) << text;
  }
  EXPECT_EQ(strings.encode("abc").size(), 2u);
}

// Added tokens: leftmost, then longest; those that are not special match whatever parse_special says.
TEST(TokenizerMerge, AddedTokensMatchFirst) {
  Json document = tiny_document();
  const auto next = static_cast<std::int32_t>(document["model"]["vocab"].size());
  Json longer = document["added_tokens"][5];
  longer["id"] = next;  // beyond the vocabulary, as in files whose added tokens were appended
  longer["content"] = "<code>ab";
  document["added_tokens"].push_back(longer);
  const Tokenizer tokenizer = Tokenizer::parse(document.dump(), "added.json");
  EXPECT_EQ(tokenizer.size(), next + 1);
  EXPECT_EQ(tokenizer.encode("<code>a", {false, false}).front(), 5);
  EXPECT_EQ(tokenizer.encode("<code>ab", {false, false}), Ids({next}));
  EXPECT_EQ(tokenizer.encode("<code><code>ab<code>", {false, true}), Ids({5, next, 5}));
  EXPECT_EQ(tokenizer.decode(Ids{next}), "<code>ab");
}

// Without the rule, text could grow into a control token by merges.
TEST(TokenizerMerge, TextNeverMergesIntoASpecialToken) {
  Json document = tiny_document();
  for (const char* content : {"abc", "a"}) {
    Json forged = document["added_tokens"][0];
    forged["id"] = document["model"]["vocab"][content];
    forged["content"] = content;
    document["added_tokens"].push_back(forged);
  }
  const Tokenizer tokenizer = Tokenizer::parse(document.dump(), "forged.json");
  for (const char* text : {"abc", "aabcc", "a"}) {
    const Ids ids = tokenizer.encode(text, {false, false});
    for (const std::int32_t id : ids) EXPECT_FALSE(tokenizer.is_special(id)) << text;
    EXPECT_EQ(tokenizer.decode(ids), text);
  }
}

}  // namespace
}  // namespace facet::test
