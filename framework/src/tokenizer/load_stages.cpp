#include <fmt/format.h>

#include "load.h"

namespace facet {

namespace {

[[noreturn]] void refuse_type(const JsonField& field, const char* supported) {
  field.member("type").refuse(fmt::format("'{}' is not supported; only {}", field.member("type").text(), supported));
}

bool is_unset(const JsonField& document, std::string_view key) {
  return !document.has(key) || document.member(key).is_null();
}

// {"String": "x"}; a regular expression is refused.
std::string read_pattern(const JsonField& field) {
  const JsonField pattern = field.member("pattern");
  if (pattern.has("Regex")) pattern.refuse("'Regex' is not supported; only 'String' is");
  pattern.allow_only({"String"});
  const std::string_view text = pattern.member("String").text();
  if (text.empty()) pattern.member("String").refuse("must not be empty");
  return std::string(text);
}

Replacement read_replace(const JsonField& field) {
  field.allow_only({"type", "pattern", "content"});
  return {read_pattern(field), std::string(field.member("content").text())};
}

void read_normalizer(const JsonField& field, std::vector<Replacement>& rules) {
  const std::string_view type = field.member("type").text();
  if (type == "Replace") {
    rules.push_back(read_replace(field));
  } else if (type == "Sequence") {
    field.allow_only({"type", "normalizers"});
    for (const JsonField& part : field.member("normalizers").elements()) {
      if (part.member("type").text() != "Replace") refuse_type(part, "'Replace' is");
      rules.push_back(read_replace(part));
    }
  } else {
    refuse_type(field, "'Replace' and 'Sequence' are");
  }
}

// True when no normalised text holds the character: some rule takes it out and no later one brings it back.
bool never_occurs(const std::string& pattern, const std::vector<Replacement>& rules) {
  bool removed = false;
  for (const Replacement& rule : rules) {
    if (rule.pattern == pattern) removed = true;
    if (rule.content.find(pattern) != std::string::npos) removed = false;
  }
  return removed;
}

}  // namespace

std::string replace_all(std::string_view text, const std::vector<Replacement>& rules) {
  std::string current(text);
  for (const Replacement& rule : rules) {
    std::string next;
    next.reserve(current.size());
    std::size_t begin = 0;
    for (std::size_t hit; (hit = current.find(rule.pattern, begin)) != std::string::npos;) {
      next.append(current, begin, hit - begin);
      next += rule.content;
      begin = hit + rule.pattern.size();
    }
    next.append(current, begin);
    current = std::move(next);
  }
  return current;
}

void load_normalizer(const JsonField& document, TokenizerData& data) {
  if (!is_unset(document, "normalizer")) read_normalizer(document.member("normalizer"), data.normalizer);
  if (is_unset(document, "pre_tokenizer")) return;
  const JsonField split = document.member("pre_tokenizer");
  if (split.member("type").text() != "Split")
    refuse_type(split, "'Split' at a character that normalisation removes is");
  split.allow_only({"type", "pattern", "behavior", "invert"});
  const std::string pattern = read_pattern(split);
  const std::string_view behavior = split.member("behavior").text();
  if (behavior != "MergedWithPrevious") {
    split.member("behavior").refuse(fmt::format("'{}' is not supported; only 'MergedWithPrevious' is", behavior));
  }
  if (split.boolean_or("invert", false)) split.member("invert").refuse("true is not supported; only false is");
  // Gemma's file splits at spaces that its normaliser has turned into U+2581 before: the split never happens.
  if (first_code_point(pattern).length != pattern.size() || !never_occurs(pattern, data.normalizer)) {
    split.member("pattern").refuse(fmt::format(
        "splitting at '{}' is not supported; only a single character that the normalizer replaces by others is",
        pattern));
  }
}

void load_template(const JsonField& document, TokenizerData& data) {
  if (is_unset(document, "post_processor")) return;
  const JsonField processor = document.member("post_processor");
  if (processor.member("type").text() != "TemplateProcessing") refuse_type(processor, "'TemplateProcessing' is");
  processor.allow_only(
      {"type", "single", "pair", "special_tokens"});  // `pair` is for two texts, which nothing here encodes
  bool text_seen = false;
  for (const JsonField& part : processor.member("single").elements()) {
    part.allow_only({"Sequence", "SpecialToken"});
    if (part.has("Sequence")) {
      const std::string_view which = part.member("Sequence").member("id").text();
      if (which != "A") part.member("Sequence").member("id").refuse(fmt::format("'{}' must be 'A'", which));
      if (text_seen) part.refuse("the text occurs twice");
      text_seen = true;
      continue;
    }
    const std::string_view name = part.member("SpecialToken").member("id").text();
    const JsonField ids = processor.member("special_tokens").member(name).member("ids");
    for (const JsonField& entry : ids.elements()) {
      const std::int32_t id = entry.id();
      if (id >= data.tokens.size()) {
        entry.refuse(fmt::format("{} is no id of the vocabulary, which has {} tokens", id, data.tokens.size()));
      }
      (text_seen ? data.suffix : data.prefix).push_back(id);
    }
  }
  if (!text_seen) processor.member("single").refuse("has no place for the text ('Sequence')");
}

void load_decoder(const JsonField& document, TokenizerData& data) {
  const JsonField decoder = document.member("decoder");
  if (decoder.is_null())
    decoder.refuse("null is not supported; only a 'Sequence' of Replace, ByteFallback and Fuse is");
  if (decoder.member("type").text() != "Sequence")
    refuse_type(decoder, "a 'Sequence' of Replace, ByteFallback and Fuse is");
  decoder.allow_only({"type", "decoders"});
  std::vector<Replacement> rules;
  int stage = 0;  // 0: replacements, 1: after ByteFallback, 2: after Fuse
  for (const JsonField& part : decoder.member("decoders").elements()) {
    const std::string_view type = part.member("type").text();
    if (type == "Replace" && stage == 0) {
      rules.push_back(read_replace(part));
    } else if (type == "ByteFallback" && stage == 0) {
      part.allow_only({"type"});
      stage = 1;
    } else if (type == "Fuse" && stage == 1) {
      part.allow_only({"type"});
      stage = 2;
    } else {
      part.member("type").refuse(fmt::format(
          "'{}' is not supported here; the decoder must be any number of Replace, then ByteFallback, then Fuse", type));
    }
  }
  if (stage != 2) decoder.member("decoders").refuse("must end with ByteFallback and Fuse");

  data.decoded_offsets.assign(1, 0);
  data.decoded_offsets.reserve(static_cast<std::size_t>(data.tokens.size()) + 1);
  data.decoded_bytes.reserve(static_cast<std::size_t>(data.tokens.size()));
  for (std::int32_t id = 0; id < data.tokens.size(); ++id) {
    const std::size_t begin = data.decoded_arena.size();
    data.decoded_arena += replace_all(data.tokens[id], rules);
    data.decoded_bytes.push_back(
        static_cast<std::int16_t>(byte_token_value(std::string_view(data.decoded_arena).substr(begin))));
    data.decoded_offsets.push_back(data.decoded_arena.size());
  }
}

}  // namespace facet
