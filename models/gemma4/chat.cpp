#include "chat.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "facet/base/error.h"
#include "facet/base/json_keys.h"
#include "facet/tokenizer/utf8.h"

namespace facet::gemma4 {

namespace {

// The word the format writes for a role.
std::string_view role_word(const ChatMessage& message, std::size_t index) {
  if (message.role == "system") return "system";
  if (message.role == "user") return "user";
  if (message.role == "model" || message.role == "assistant") return "model";
  throw_error(ErrorKind::request,
              "message {}: unknown role '{}'; known are system, user, model (also called assistant)", index,
              message.role);
}

void check_content(const ChatMessage& message, std::size_t index) {
  const std::size_t offset = find_invalid_utf8(message.content);
  if (offset == std::string_view::npos) return;
  throw_error(ErrorKind::request, "message {} ({}): the content is not valid UTF-8 at byte {} (0x{:02X})", index,
              message.role, offset, static_cast<unsigned char>(message.content[offset]));
}

void add_once(std::int32_t id, std::vector<std::int32_t>& ids) {
  if (std::find(ids.begin(), ids.end(), id) == ids.end()) ids.push_back(id);
}

std::int32_t checked_id(const nlohmann::json& value, const std::string& place, std::int64_t vocabulary) {
  const std::int64_t largest = vocabulary - 1;
  // Unsigned first: a number above 2^63 must not wrap around.
  const bool whole = value.is_number_integer();
  const bool fits =
      whole && (value.is_number_unsigned() ? value.get<std::uint64_t>() <= static_cast<std::uint64_t>(largest)
                                           : value.get<std::int64_t>() >= 0);
  if (!fits) {
    throw_error(ErrorKind::checkpoint, "{}: {} is no token id; it must be a whole number from 0 to {}", place,
                value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace), largest);
  }
  return value.get<std::int32_t>();
}

void add_eos(const nlohmann::json& object, const std::string& place, std::int64_t vocabulary,
             std::vector<std::int32_t>& ids) {
  const auto found = object.find("eos_token_id");
  if (found == object.end() || found->is_null()) return;
  if (!found->is_array()) {
    add_once(checked_id(*found, place, vocabulary), ids);
    return;
  }
  for (std::size_t index = 0; index < found->size(); ++index) {
    add_once(checked_id((*found)[index], fmt::format("{}[{}]", place, index), vocabulary), ids);
  }
}

void add_eos_of_file(std::string_view text, const char* name, const StopSource& source,
                     std::vector<std::int32_t>& ids) {
  if (text.empty()) return;
  const std::string file = (source.folder / name).string();
  refuse_repeated_keys(std::string(text), ErrorKind::checkpoint, file);
  const nlohmann::json document = nlohmann::json::parse(text, nullptr, false);
  if (document.is_discarded()) throw_error(ErrorKind::checkpoint, "{}: is not valid JSON", file);
  if (!document.is_object())
    throw_error(ErrorKind::checkpoint, "{}: must be an object, but is {}", file, document.type_name());
  add_eos(document, file + ": eos_token_id", source.vocabulary, ids);
  const auto inner = document.find("text_config");
  if (inner != document.end() && inner->is_object())
    add_eos(*inner, file + ": text_config.eos_token_id", source.vocabulary, ids);
}

}  // namespace

ChatFormat::ChatFormat(Tokenizer tokenizer) : tokenizer_(std::move(tokenizer)) {
  Problems problems;
  const auto look_up = [&](std::string_view name) {
    const std::optional<std::int32_t> id = tokenizer_.id_of(name);
    if (!id.has_value()) {
      problems.add("token '{}' is missing", name);
    } else if (!tokenizer_.is_special(*id)) {
      problems.add("token '{}' (id {}) is not marked special, so text could forge it", name, *id);
    }
    return id.value_or(-1);
  };
  bos_ = look_up("<bos>");
  turn_begin_ = look_up("<|turn>");
  turn_end_ = look_up("<turn|>");
  problems.throw_if_any(ErrorKind::checkpoint, "the tokenizer cannot write Gemma 4's chat format");
}

void ChatFormat::append_text(std::string_view text, std::vector<std::int32_t>& ids) const {
  const std::vector<std::int32_t> piece = tokenizer_.encode(text, {.add_special = false, .parse_special = false});
  ids.insert(ids.end(), piece.begin(), piece.end());
}

std::vector<std::int32_t> ChatFormat::encode(std::span<const ChatMessage> messages, bool ask_for_answer) const {
  if (messages.empty()) throw_error(ErrorKind::request, "a chat needs at least one message");
  std::vector<std::int32_t> ids{bos_};
  for (std::size_t index = 0; index < messages.size(); ++index) {
    const ChatMessage& message = messages[index];
    std::string text(role_word(message, index));
    check_content(message, index);
    text += '\n';
    text += message.content;
    ids.push_back(turn_begin_);
    append_text(text, ids);
    ids.push_back(turn_end_);
    append_text("\n", ids);
  }
  if (ask_for_answer) {
    ids.push_back(turn_begin_);
    append_text("model\n", ids);
  }
  return ids;
}

std::vector<std::int32_t> stop_ids(std::string_view generation_config_json, std::string_view config_json,
                                   std::span<const std::int32_t> extra, const StopSource& source) {
  std::vector<std::int32_t> ids;
  add_eos_of_file(generation_config_json, "generation_config.json", source, ids);
  add_eos_of_file(config_json, "config.json", source, ids);
  for (const std::int32_t id : extra) {
    if (id < 0) throw_error(ErrorKind::request, "stop id {} is no token id; ids are 0 or more", id);
    add_once(id, ids);
  }
  return ids;
}

}  // namespace facet::gemma4
