#include "facet/tokenizer/tokenizer.h"

#include <algorithm>
#include <limits>

#include "facet/base/error.h"
#include "facet/base/file.h"
#include "facet/tokenizer/stream_decoder.h"
#include "facet/tokenizer/utf8.h"
#include "load.h"

namespace facet {

namespace {

std::shared_ptr<const TokenizerData> read_document(const simdjson::padded_string& json, const std::string& name) {
  simdjson::dom::parser parser;
  simdjson::dom::element root;
  if (const auto error = parser.parse(json).get(root); error != simdjson::SUCCESS) {
    throw_error(ErrorKind::checkpoint, "{}: is not valid JSON: {}", name, simdjson::error_message(error));
  }
  const JsonField document(root, name, "");
  document.allow_only({"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer",
                       "post_processor", "decoder", "model"});
  if (document.has("version") && document.member("version").text() != "1.0") {
    document.member("version").refuse(
        fmt::format("'{}' is not supported; only '1.0' is", document.member("version").text()));
  }
  document.must_be_unset("truncation");
  document.must_be_unset("padding");
  auto data = std::make_shared<TokenizerData>();
  load_tokens(document, *data);
  load_model(document, *data);
  load_normalizer(document, *data);
  load_template(document, *data);
  load_decoder(document, *data);
  return data;
}

void encode_piece(const TokenizerData& data, std::string_view piece, std::vector<std::int32_t>& ids) {
  if (piece.empty()) return;
  const std::string normalised = replace_all(piece, data.normalizer);
  if (normalised.size() > static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max())) {
    throw_error(ErrorKind::request,
                "a text of {} bytes is too long to encode at once; the limit is {} bytes after normalisation",
                normalised.size(), std::numeric_limits<std::int32_t>::max());
  }
  data.bpe.encode(normalised, ids);
}

}  // namespace

void TokenizerData::check_id(std::int32_t id) const {
  if (id < 0 || id >= tokens.size()) {
    throw_error(ErrorKind::request, "token id {} is not in the tokenizer; ids are 0 to {}", id, tokens.size() - 1);
  }
}

Tokenizer Tokenizer::load(const std::filesystem::path& tokenizer_json) {
  return parse(read_file(tokenizer_json, ErrorKind::checkpoint), tokenizer_json.string());
}

Tokenizer Tokenizer::parse(std::string_view json, const std::string& name) {
  return Tokenizer(read_document(simdjson::padded_string(json), name));
}

std::vector<std::int32_t> Tokenizer::encode(std::string_view text, EncodeOptions options) const {
  if (const std::size_t offset = find_invalid_utf8(text); offset != std::string_view::npos) {
    throw_error(ErrorKind::request, "the text is not valid UTF-8 at byte {} (0x{:02X})", offset,
                static_cast<unsigned char>(text[offset]));
  }
  std::vector<std::int32_t> ids;
  if (options.add_special) ids = data_->prefix;
  const AddedTokens& added = options.parse_special ? data_->added : data_->added_plain;
  std::size_t begin = 0;
  while (begin < text.size()) {
    const AddedTokens::Match match = added.find(text, begin);
    encode_piece(*data_, text.substr(begin, match.begin - begin), ids);
    if (match.id >= 0) ids.push_back(match.id);
    begin = match.begin + match.length;
  }
  if (options.add_special) ids.insert(ids.end(), data_->suffix.begin(), data_->suffix.end());
  return ids;
}

std::vector<std::int32_t> Tokenizer::encode_prompt(std::string_view text, bool parse_special) const {
  std::vector<std::int32_t> ids = encode(text, {true, parse_special});
  const std::optional<std::int32_t> bos = bos_id();
  if (!bos.has_value()) return ids;
  const auto is_bos = [&](std::int32_t id) { return id == *bos; };
  const auto first_other = std::find_if_not(ids.begin(), ids.end(), is_bos);
  ids.erase(ids.begin() + 1, std::max(first_other, ids.begin() + 1));
  return ids;
}

std::string Tokenizer::decode(std::span<const std::int32_t> ids, bool skip_special) const {
  std::string text;
  Utf8Joiner joiner;
  for (const std::int32_t id : ids) {
    data_->check_id(id);
    if (skip_special && data_->special[static_cast<std::size_t>(id)] != 0) continue;
    const std::int16_t byte = data_->decoded_bytes[static_cast<std::size_t>(id)];
    if (byte >= 0) {
      joiner.push_byte(static_cast<char>(byte), text);
    } else {
      joiner.push_text(data_->decoded(id), text);
    }
  }
  joiner.finish(text);
  return text;
}

std::string_view Tokenizer::token(std::int32_t id) const {
  data_->check_id(id);
  return data_->tokens[id];
}

std::optional<std::int32_t> Tokenizer::id_of(std::string_view token) const {
  const std::int32_t id = data_->tokens.find(token);
  if (id < 0) return std::nullopt;
  return id;
}

std::int32_t Tokenizer::size() const {
  return data_->tokens.size();
}

bool Tokenizer::is_special(std::int32_t id) const {
  data_->check_id(id);
  return data_->special[static_cast<std::size_t>(id)] != 0;
}

std::optional<std::int32_t> Tokenizer::bos_id() const {
  if (data_->prefix.empty()) return std::nullopt;
  return data_->prefix.front();
}

}  // namespace facet
