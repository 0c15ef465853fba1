// Streaming decode: whole characters only, and the same text as decoding at once.
#include <gmock/gmock.h>

#include "facet/tokenizer/stream_decoder.h"
#include "facet/tokenizer/utf8.h"
#include "fixtures.h"

namespace facet::test {
namespace {

using testing::ElementsAre;

constexpr const char* kKorean = "\xEA\xB9\xB0";     // U+AE70
constexpr const char* kEmoji = "\xF0\x9F\x98\x80";  // U+1F600

std::int32_t byte_id(int byte) {
  return shipped_tokenizer().id_of(fmt::format("<0x{:02X}>", byte)).value();
}

Ids byte_ids(std::string_view bytes) {
  Ids ids;
  for (char byte : bytes) ids.push_back(byte_id(static_cast<unsigned char>(byte)));
  return ids;
}

// Every chunk, the last one being what finish() gives. Checks what must hold for any ids.
std::vector<std::string> stream(const Ids& ids, bool skip_special = true) {
  StreamDecoder decoder(shipped_tokenizer(), skip_special);
  std::vector<std::string> chunks;
  std::string all;
  for (const std::int32_t id : ids) chunks.push_back(decoder.push(id));
  chunks.push_back(decoder.finish());
  EXPECT_FALSE(decoder.pending());
  for (const std::string& chunk : chunks) {
    EXPECT_EQ(find_invalid_utf8(chunk), std::string_view::npos);
    EXPECT_NO_THROW(Json(chunk).dump()) << "a chunk must be valid JSON text";
    all += chunk;
  }
  EXPECT_EQ(all, shipped_tokenizer().decode(ids, skip_special));
  return chunks;
}

std::string repeat(const char* text, int count) {
  std::string all;
  for (int index = 0; index < count; ++index) all += text;
  return all;
}

TEST(StreamDecoder, ByteTokensBecomeCharacters) {
  EXPECT_THAT(stream(byte_ids(kKorean)), ElementsAre("", "", kKorean, ""));
  EXPECT_THAT(stream(byte_ids(kEmoji)), ElementsAre("", "", "", kEmoji, ""));
  Ids ids = byte_ids(kKorean);
  ids.push_back(shipped_tokenizer().id_of("a").value());
  const Ids emoji = byte_ids(kEmoji);
  ids.insert(ids.end(), emoji.begin(), emoji.end());
  EXPECT_THAT(stream(ids), ElementsAre("", "", kKorean, "a", "", "", "", kEmoji, ""));
}

TEST(StreamDecoder, ACutTailGivesOneReplacementAtTheEnd) {
  for (std::size_t kept = 1; kept <= 3; ++kept) {
    Ids ids = byte_ids(kEmoji);
    ids.resize(kept);
    const std::vector<std::string> chunks = stream(ids);
    for (std::size_t index = 0; index < kept; ++index) EXPECT_EQ(chunks[index], "");
    EXPECT_EQ(chunks.back(), kReplacement) << kept;
  }
}

TEST(StreamDecoder, WrongBytesGiveOneReplacementEach) {
  EXPECT_THAT(stream(byte_ids("\xFF")), ElementsAre(kReplacement, ""));
  EXPECT_THAT(stream(byte_ids("\x80\xFF")), ElementsAre(kReplacement, kReplacement, ""));
  // Surrogate: the second byte already proves it wrong.
  EXPECT_THAT(stream(byte_ids("\xED\xA0\x80")), ElementsAre("", repeat(kReplacement, 2), kReplacement, ""));
  // A pending character that other text interrupts.
  Ids ids = byte_ids("\xEA\xB9");
  ids.push_back(shipped_tokenizer().id_of("a").value());
  EXPECT_THAT(stream(ids), ElementsAre("", "", repeat(kReplacement, 2) + "a", ""));
  // A whole character of a run that goes wrong later is kept.
  EXPECT_THAT(stream(byte_ids("\xC3\xA9\xFF")), ElementsAre("", "\xC3\xA9", kReplacement, ""));
  // A new character begins inside a broken one.
  EXPECT_THAT(stream(byte_ids("\xF0\x9F\xC3\xA9")), ElementsAre("", "", repeat(kReplacement, 2), "\xC3\xA9", ""));
}

TEST(StreamDecoder, JoinedEmojiAndFlagsComeBack) {
  const std::string text = "x \xF0\x9F\x87\xA9\xF0\x9F\x87\xAA \xF0\x9F\x91\xA9\xE2\x80\x8D\xF0\x9F\x92\xBB y";
  std::string all;
  for (const std::string& chunk : stream(shipped_tokenizer().encode(text))) all += chunk;
  EXPECT_EQ(all, text);
}

// A special token that is left out is as if it were not there, so bytes on both sides of it join.
TEST(StreamDecoder, SkippedTokensDoNotInterrupt) {
  Ids ids = byte_ids(kKorean);
  ids.insert(ids.begin() + 1, 2);
  EXPECT_THAT(stream(ids), ElementsAre("", "", "", kKorean, ""));
  EXPECT_THAT(stream(ids, false), ElementsAre("", std::string(kReplacement) + "<bos>", kReplacement, kReplacement, ""));
}

TEST(StreamDecoder, EqualsDecodingAtOnceOnRandomIds) {
  for (std::uint64_t seed = 1; seed <= 500; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    std::mt19937_64 random(seed);
    Ids ids;
    const std::uint64_t length = random() % 60;
    for (std::uint64_t index = 0; index < length; ++index) {
      switch (random() % 4) {
        case 0:
          ids.push_back(static_cast<std::int32_t>(random() % 8192));
          break;
        case 1:
          ids.push_back(byte_id(static_cast<int>(random() % 256)));
          break;
        case 2:
          ids.push_back(byte_id(static_cast<int>(0x80 + random() % 0x40)));
          break;
        default: {
          const Ids character = byte_ids(random_text(random, 1));
          ids.insert(ids.end(), character.begin(), character.end());
        }
      }
    }
    stream(ids, random() % 2 == 0);
  }
}

TEST(StreamDecoder, AnUnknownIdIsAnErrorAndChangesNothing) {
  StreamDecoder decoder(shipped_tokenizer());
  EXPECT_EQ(decoder.push(byte_id(0xC3)), "");
  EXPECT_THROW(decoder.push(8192), Error);
  EXPECT_THROW(decoder.push(-1), Error);
  EXPECT_EQ(decoder.push(byte_id(0xA9)), "\xC3\xA9");
  EXPECT_EQ(decoder.finish(), "");
  EXPECT_THROW(shipped_tokenizer().decode(Ids{1, 8192}), Error);
}

// The decoder outlives the tokenizer it was made from.
TEST(StreamDecoder, KeepsTheTablesAlive) {
  auto tokenizer = std::make_unique<Tokenizer>(Tokenizer::parse(tiny_document().dump(), "tiny.json"));
  StreamDecoder decoder(*tokenizer);
  const std::int32_t id = tokenizer->id_of("abc").value();
  tokenizer.reset();
  EXPECT_EQ(decoder.push(id), "abc");
}

}  // namespace
}  // namespace facet::test
