#include <fmt/format.h>

#include "load.h"

namespace facet {

namespace {

// Where ids are given to strings: by_id may have holes at the end only, once all are in.
struct Assignment {
  std::vector<std::string_view> by_id;
  std::vector<bool> taken;
};

void read_vocabulary(const JsonField& vocabulary, Assignment& assignment) {
  for (simdjson::dom::key_value_pair pair : vocabulary.object()) {
    std::int64_t id = -1;
    const bool whole = pair.value.get(id) == simdjson::SUCCESS;
    if (!whole || id < 0 || id >= static_cast<std::int64_t>(assignment.by_id.size())) {
      vocabulary.refuse(fmt::format("the id of token '{}' must be a whole number from 0 to {}", pair.key,
                                    assignment.by_id.size() - 1));
    }
    const auto index = static_cast<std::size_t>(id);
    if (assignment.taken[index]) {
      vocabulary.refuse(fmt::format("id {} belongs to both '{}' and '{}'", id, assignment.by_id[index], pair.key));
    }
    assignment.by_id[index] = pair.key;
    assignment.taken[index] = true;
  }
}

struct AddedToken {
  std::int32_t id;
  std::string_view content;
  bool special;
};

AddedToken read_added_token(const JsonField& field, Assignment& assignment) {
  field.allow_only({"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
  const AddedToken token{field.member("id").id(), field.member("content").text(), field.boolean_or("special", false)};
  if (token.content.empty()) field.member("content").refuse("must not be empty");
  for (std::string_view flag : {"single_word", "lstrip", "rstrip"}) {
    if (field.boolean_or(flag, false)) field.member(flag).refuse("true is not supported; only false is");
  }
  // Absent means the opposite of `special` in the reference library; a token matched after normalisation is another
  // matter.
  if (field.boolean_or("normalized", !token.special)) {
    field.refuse("normalized = true is not supported; only tokens matched in the raw text are (normalized = false)");
  }
  const auto index = static_cast<std::size_t>(token.id);
  if (index >= assignment.by_id.size()) {
    field.member("id").refuse(
        fmt::format("{} leaves ids without a token; the vocabulary and the added tokens fill at most 0 to {}", token.id,
                    assignment.by_id.size() - 1));
  }
  if (assignment.taken[index] && assignment.by_id[index] != token.content) {
    field.member("id").refuse(
        fmt::format("id {} is '{}' elsewhere, but '{}' here", token.id, assignment.by_id[index], token.content));
  }
  assignment.by_id[index] = token.content;
  assignment.taken[index] = true;
  return token;
}

}  // namespace

void load_tokens(const JsonField& document, TokenizerData& data) {
  const JsonField vocabulary = document.member("model").member("vocab");
  std::vector<JsonField> added_fields;
  if (document.has("added_tokens")) added_fields = document.member("added_tokens").elements();

  // simdjson's own count saturates at 2^24 - 1, hence the loop.
  std::size_t count = added_fields.size();
  for ([[maybe_unused]] simdjson::dom::key_value_pair pair : vocabulary.object()) ++count;
  if (count == added_fields.size()) vocabulary.refuse("has no tokens");
  Assignment assignment{std::vector<std::string_view>(count), std::vector<bool>(count, false)};
  read_vocabulary(vocabulary, assignment);
  std::vector<AddedToken> added;
  added.reserve(added_fields.size());
  for (const JsonField& field : added_fields) added.push_back(read_added_token(field, assignment));

  while (!assignment.taken.back()) {
    assignment.taken.pop_back();
    assignment.by_id.pop_back();
  }
  for (std::size_t id = 0; id < assignment.taken.size(); ++id) {
    if (!assignment.taken[id]) vocabulary.refuse(fmt::format("no token has id {}; ids must have no gap", id));
  }
  const TokenTable::Duplicate twice = data.tokens.build(assignment.by_id);
  if (twice.first != TokenTable::kNone) {
    vocabulary.refuse(fmt::format("token '{}' has two ids, {} and {} (vocabulary and added_tokens together)",
                                  data.tokens[twice.second], twice.first, twice.second));
  }
  data.special.assign(assignment.by_id.size(), 0);
  for (const AddedToken& token : added) {
    data.added.add(token.content, token.id);
    if (token.special) {
      data.special[static_cast<std::size_t>(token.id)] = 1;
    } else {
      data.added_plain.add(token.content, token.id);
    }
  }
}

}  // namespace facet
