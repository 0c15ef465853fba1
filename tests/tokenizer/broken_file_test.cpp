// Faulty or unsupported tokenizer.json files: each is refused, and the message names the file, the field and the fault.
#include <gmock/gmock.h>

#include <functional>

#include "fixtures.h"

namespace facet::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

struct Fault {
  const char* message;
  std::function<void(Json&)> make;
};

void expect_refused(const std::vector<Fault>& faults) {
  ASSERT_EQ(parse_error(tiny_document().dump()), "no error");
  for (const Fault& fault : faults) {
    Json document = tiny_document();
    fault.make(document);
    EXPECT_THAT(parse_error(document.dump()), AllOf(StartsWith("fixture.json: "), HasSubstr(fault.message)));
  }
}

TEST(TokenizerFile, WrongVocabulary) {
  expect_refused({
      {"model: is missing", [](Json& d) { d.erase("model"); }},
      {"model.vocab: is missing", [](Json& d) { d["model"].erase("vocab"); }},
      {"model.vocab: must be an object, but is an array", [](Json& d) { d["model"]["vocab"] = Json::array(); }},
      {"model.vocab: has no tokens", [](Json& d) { d["model"]["vocab"] = Json::object(); }},
      {"the id of token 'a' must be a whole number", [](Json& d) { d["model"]["vocab"]["a"] = "7"; }},
      {"the id of token 'a' must be a whole number", [](Json& d) { d["model"]["vocab"]["a"] = -1; }},
      {"the id of token 'a' must be a whole number", [](Json& d) { d["model"]["vocab"]["a"] = 4000000000; }},
      {"id 263 belongs to both 'a' and 'b'", [](Json& d) { d["model"]["vocab"]["a"] = 263; }},
      {"no token has id 262", [](Json& d) { d["model"]["vocab"].erase("a"); }},
      {"token '<0x1F>' is missing",
       [](Json& d) {
         const std::string text = d.dump();
         Json vocabulary = Json::object();
         for (const auto& [token, id] : d["model"]["vocab"].items())
           vocabulary[token == "<0x1F>" ? "other" : token] = id;
         d["model"]["vocab"] = vocabulary;
       }},
  });
}

TEST(TokenizerFile, WrongAddedTokens) {
  expect_refused({
      {"added_tokens: must be an array", [](Json& d) { d["added_tokens"] = 3; }},
      {"added_tokens[2].id: is missing", [](Json& d) { d["added_tokens"][2].erase("id"); }},
      {"added_tokens[2].content: must not be empty", [](Json& d) { d["added_tokens"][2]["content"] = ""; }},
      {"added_tokens[2].lstrip: true is not supported", [](Json& d) { d["added_tokens"][2]["lstrip"] = true; }},
      {"added_tokens[2].rstrip: true is not supported", [](Json& d) { d["added_tokens"][2]["rstrip"] = true; }},
      {"added_tokens[2].single_word: true is not supported",
       [](Json& d) { d["added_tokens"][2]["single_word"] = true; }},
      {"normalized = true is not supported", [](Json& d) { d["added_tokens"][2]["normalized"] = true; }},
      {"normalized = true is not supported", [](Json& d) { d["added_tokens"][5].erase("normalized"); }},
      {"id 2 is '<unk>' elsewhere, but '<what>' here", [](Json& d) { d["added_tokens"][2]["content"] = "<what>"; }},
      {"added_tokens[2].id: 9999 leaves ids without a token", [](Json& d) { d["added_tokens"][2]["id"] = 9999; }},
      {"token '<unk>' has two ids, 2 and 270", [](Json& d) { d["added_tokens"][2]["id"] = 270; }},
      {"setting 'specal' is not supported (did the file mean 'special'?)",
       [](Json& d) { d["added_tokens"][2]["specal"] = true; }},
      {"added_tokens[2].special: must be true or false, but is a number",
       [](Json& d) { d["added_tokens"][2]["special"] = 1; }},
  });
}

TEST(TokenizerFile, UnsupportedModel) {
  expect_refused({
      {"model.type: 'Unigram' is not supported", [](Json& d) { d["model"]["type"] = "Unigram"; }},
      {"model.dropout: is not supported", [](Json& d) { d["model"]["dropout"] = 0.1; }},
      {"model.continuing_subword_prefix: is not", [](Json& d) { d["model"]["continuing_subword_prefix"] = "##"; }},
      {"model.end_of_word_suffix: is not supported", [](Json& d) { d["model"]["end_of_word_suffix"] = "</w>"; }},
      {"model.ignore_merges: true is not supported", [](Json& d) { d["model"]["ignore_merges"] = true; }},
      {"model.unk_token: '<nope>' is not in the vocabulary", [](Json& d) { d["model"]["unk_token"] = "<nope>"; }},
      {"model: needs unk_token or byte_fallback",
       [](Json& d) {
         d["model"]["unk_token"] = nullptr;
         d["model"]["byte_fallback"] = false;
       }},
      {"model: setting 'cache' is not supported", [](Json& d) { d["model"]["cache"] = 1; }},
  });
}

TEST(TokenizerFile, WrongMerges) {
  expect_refused({
      {"model.merges: is missing", [](Json& d) { d["model"].erase("merges"); }},
      {"model.merges: entry 0: left token 'q' is not in the vocabulary",
       [](Json& d) {
         d["model"]["merges"][0] = {"q", "a"};
       }},
      {"model.merges: entry 1: right token 'q' is not in",
       [](Json& d) {
         d["model"]["merges"][1] = {"a", "q"};
       }},
      {"model.merges: entry 1: merged token 'ca' is not in",
       [](Json& d) {
         d["model"]["merges"][1] = {"c", "a"};
       }},
      {"model.merges: entry 2: must be two strings", [](Json& d) { d["model"]["merges"][2] = 5; }},
      {"model.merges: entry 2: must be two strings",
       [](Json& d) {
         d["model"]["merges"][2] = Json::array({"a", "b", "c"});
       }},
      {"model.merges: entry 2: 'ab' must be two tokens with one space",
       [](Json& d) { d["model"]["merges"][2] = "ab"; }},
      {"model.merges: entry 2: 'a b c' must be two tokens", [](Json& d) { d["model"]["merges"][2] = "a b c"; }},
      {"entry 3: 'a' and 'b' are already merged by entry 0", [](Json& d) { d["model"]["merges"][3] = "a b"; }},
  });
}

TEST(TokenizerFile, UnsupportedStages) {
  expect_refused({
      {"version: '2.0' is not supported", [](Json& d) { d["version"] = "2.0"; }},
      {"the document: setting 'extra' is not supported", [](Json& d) { d["extra"] = 1; }},
      {"truncation: is not supported",
       [](Json& d) {
         d["truncation"] = {{"max_length", 8}};
       }},
      {"padding: is not supported",
       [](Json& d) {
         d["padding"] = {{"length", 8}};
       }},
      {"normalizer.type: 'NFC' is not supported",
       [](Json& d) {
         d["normalizer"] = {{"type", "NFC"}};
       }},
      {"normalizer.pattern: 'Regex' is not supported",
       [](Json& d) {
         d["normalizer"]["pattern"] = {{"Regex", " +"}};
       }},
      {"normalizer.pattern.String: must not be empty", [](Json& d) { d["normalizer"]["pattern"]["String"] = ""; }},
      {"normalizer.normalizers[0].type: 'Prepend' is not supported",
       [](Json& d) {
         d["normalizer"] = {{"type", "Sequence"}, {"normalizers", Json::array({{{"type", "Prepend"}}})}};
       }},
      {"pre_tokenizer.type: 'ByteLevel' is not",
       [](Json& d) {
         d["pre_tokenizer"] = {{"type", "ByteLevel"}};
       }},
      {"pre_tokenizer.behavior: 'Isolated' is not", [](Json& d) { d["pre_tokenizer"]["behavior"] = "Isolated"; }},
      {"pre_tokenizer.invert: true is not supported", [](Json& d) { d["pre_tokenizer"]["invert"] = true; }},
      {"pre_tokenizer.pattern: splitting at 'a' is not",
       [](Json& d) { d["pre_tokenizer"]["pattern"]["String"] = "a"; }},
      {"pre_tokenizer.pattern: splitting at ' ' is not", [](Json& d) { d["normalizer"] = nullptr; }},
      {"post_processor.type: 'ByteLevel' is not",
       [](Json& d) {
         d["post_processor"] = {{"type", "ByteLevel"}};
       }},
      {"post_processor.special_tokens.<bos>: is missing",
       [](Json& d) { d["post_processor"]["special_tokens"].erase("<bos>"); }},
      {"post_processor.special_tokens.<bos>.ids[0]: 999 is no id",
       [](Json& d) { d["post_processor"]["special_tokens"]["<bos>"]["ids"][0] = 999; }},
      {"post_processor.single: has no place for the text", [](Json& d) { d["post_processor"]["single"].erase(1); }},
      {"decoder: is missing", [](Json& d) { d.erase("decoder"); }},
      {"decoder: null is not supported", [](Json& d) { d["decoder"] = nullptr; }},
      {"decoder.type: 'Metaspace' is not supported",
       [](Json& d) {
         d["decoder"] = {{"type", "Metaspace"}};
       }},
      {"decoder.decoders[1].type: 'Strip' is not supported here",
       [](Json& d) { d["decoder"]["decoders"][1]["type"] = "Strip"; }},
      {"decoder.decoders: must end with ByteFallback and Fuse", [](Json& d) { d["decoder"]["decoders"].erase(2); }},
  });
}

TEST(TokenizerFile, NotJson) {
  for (const char* text : {"", "{", "[1,", "\xFF", "{\"model\": nul}"}) {
    EXPECT_THAT(parse_error(text), StartsWith("fixture.json: is not valid JSON")) << text;
  }
  EXPECT_THAT(parse_error("[]"), HasSubstr("the document: must be an object, but is an array"));
  const std::string twice = R"({"version": "1.0", "version": "1.0"})";
  EXPECT_THAT(parse_error(twice), HasSubstr("'version' occurs twice"));
}

TEST(TokenizerFile, FilesThatCannotBeRead) {
  const std::filesystem::path folder =
      std::filesystem::path(testing::TempDir()) / fmt::format("facet_tokenizer_{}", ::getpid());
  std::filesystem::create_directories(folder);
  const auto message = [](const std::filesystem::path& path) -> std::string {
    try {
      Tokenizer::load(path);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::checkpoint);
      return error.what();
    }
    return "no error";
  };
  EXPECT_THAT(message(folder / "absent.json"), HasSubstr("absent.json: cannot be read: "));
  EXPECT_THAT(message(folder), HasSubstr("cannot be read: it is a folder"));
  std::ofstream(folder / "good.json") << tiny_document().dump();
  EXPECT_EQ(message(folder / "good.json"), "no error");
  std::filesystem::remove_all(folder);
}

// Optional parts may be absent: then nothing is normalised and nothing is added.
TEST(TokenizerFile, OptionalPartsMayBeAbsent) {
  Json document = tiny_document();
  for (const char* key : {"normalizer", "pre_tokenizer", "post_processor", "truncation", "padding", "version"}) {
    document.erase(key);
  }
  const Tokenizer tokenizer = Tokenizer::parse(document.dump(), "small.json");
  EXPECT_EQ(tokenizer.bos_id(), std::nullopt);
  EXPECT_EQ(tokenizer.encode_prompt("abc"), Ids({tokenizer.id_of("abc").value()}));
  EXPECT_EQ(tokenizer.encode("a b"),
            Ids({tokenizer.id_of("a").value(), tokenizer.id_of("<0x20>").value(), tokenizer.id_of("b").value()}));
}

// Without byte fallback a character outside the vocabulary is the unknown token; fuse_unk joins neighbours.
TEST(TokenizerFile, UnknownCharacters) {
  Json document = tiny_document();
  document["model"]["byte_fallback"] = false;
  EXPECT_EQ(Tokenizer::parse(document.dump(), "fused.json").encode("axyb", {false, true}).size(), 3u);
  document["model"]["fuse_unk"] = false;
  const Tokenizer apart = Tokenizer::parse(document.dump(), "apart.json");
  EXPECT_EQ(apart.encode("axyb", {false, true}), Ids({262, 2, 2, 263}));
}

}  // namespace
}  // namespace facet::test
