// Text to token ids and back, from a Hugging Face tokenizer.json of the kind Gemma ships: BPE with byte fallback over
// text whose spaces were rewritten, added tokens matched first, a template that puts BOS in front.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace facet {

struct TokenizerData;

struct EncodeOptions {
  // Adds what the file's post_processor adds around one text (Gemma: BOS in front).
  bool add_special = true;
  // Special tokens written in the text (`<bos>`, `<|turn>`) become their ids. Off: they stay ordinary text, which is
  // what text from a user needs. Added tokens that are not special are vocabulary pieces and match either way.
  bool parse_special = true;
};

// Immutable after loading; copies share the tables, and every const function may run on many threads at once.
class Tokenizer {
 public:
  // Reads tokenizer.json. Throws Error(checkpoint) that names file and field; a normalizer, pre_tokenizer, decoder,
  // model or post_processor setting that this class does not implement is refused by name.
  static Tokenizer load(const std::filesystem::path& tokenizer_json);
  // The same from text in memory; `name` stands for the file in errors.
  static Tokenizer parse(std::string_view json, const std::string& name);

  // Ids of `text`, id for id what the reference library gives. One difference, on purpose: a merge that would build a
  // special token is not applied, so with parse_special off no text turns into a control id. Text that itself spells
  // BOS gives a second BOS here, as the reference does; see encode_prompt. Time grows as n log n in the bytes of the
  // text. Throws Error(request) naming the byte offset when the text is not valid UTF-8.
  std::vector<std::int32_t> encode(std::string_view text, EncodeOptions options = {}) const;

  // Ids of a raw prompt: encode(text, {true, parse_special}) with exactly one leading BOS, whether or not the text
  // already starts with it. A BOS later in the text stays.
  std::vector<std::int32_t> encode_prompt(std::string_view text, bool parse_special = true) const;

  // Text of ids, always valid UTF-8. Byte tokens that make up characters become those characters. Of the rest, every
  // byte gives one U+FFFD, except that a character cut off by the end of the ids gives a single one. (The reference
  // library replaces a whole run of byte tokens when any of it is wrong; a stream cannot know that in time, so whole
  // characters of such a run are kept here.) skip_special leaves out special tokens. Throws Error(request) for an id
  // outside 0 .. size() - 1.
  std::string decode(std::span<const std::int32_t> ids, bool skip_special = true) const;

  // The token as the file spells it, e.g. "▁the" or "<0x0A>"; valid as long as this Tokenizer or a copy lives.
  // Throws Error(request) for an unknown id.
  std::string_view token(std::int32_t id) const;
  // Exact spelling to id; nothing when the vocabulary has no such token (never the unknown token's id).
  std::optional<std::int32_t> id_of(std::string_view token) const;
  // Number of ids, added tokens included: valid ids are 0 .. size() - 1.
  std::int32_t size() const;
  // True for added tokens marked special in the file. Throws Error(request) for an unknown id.
  bool is_special(std::int32_t id) const;
  // First token that the template puts in front of a text; nothing when it puts none there.
  std::optional<std::int32_t> bos_id() const;

 private:
  friend class StreamDecoder;
  explicit Tokenizer(std::shared_ptr<const TokenizerData> data) : data_(std::move(data)) {}

  std::shared_ptr<const TokenizerData> data_;
};

}  // namespace facet
