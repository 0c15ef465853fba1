// Gemma 4's chat format as token ids, and the ids that end an answer.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "facet/tokenizer/tokenizer.h"

namespace facet::gemma4 {

struct ChatMessage {
  // "system", "user" or "model"; "assistant" is another name for "model".
  std::string role;
  // Plain text, valid UTF-8. Marks such as <turn|> in it stay text.
  std::string content;
};

class ChatFormat {
 public:
  // Looks up the control tokens. Throws Error(checkpoint) that names every one the tokenizer lacks or does not mark
  // special (text could forge a token that is not special).
  explicit ChatFormat(Tokenizer tokenizer);

  // Ids of  <bos> { <|turn>{role}\n{content}<turn|>\n } for each message, then <|turn>model\n when `ask_for_answer`.
  // Between two control tokens the text is encoded in one go, as it is when the whole string is encoded. Content is
  // neither trimmed nor changed, and gives no control id whatever it says. Throws Error(request): no message, an
  // unknown role (the known ones are listed), content that is not UTF-8.
  std::vector<std::int32_t> encode(std::span<const ChatMessage> messages, bool ask_for_answer = true) const;

  std::int32_t bos_id() const { return bos_; }
  // <|turn> and <turn|>; the second ends an answer and belongs to the stop ids.
  std::int32_t turn_begin_id() const { return turn_begin_; }
  std::int32_t turn_end_id() const { return turn_end_; }

 private:
  void append_text(std::string_view text, std::vector<std::int32_t>& ids) const;

  Tokenizer tokenizer_;
  std::int32_t bos_ = -1;
  std::int32_t turn_begin_ = -1;
  std::int32_t turn_end_ = -1;
};

// Where both files of stop ids lie, for errors, and how many ids the model has.
struct StopSource {
  std::filesystem::path folder;
  std::int64_t vocabulary = std::int64_t{1} << 31;
};

// Ids at which generation stops: `eos_token_id`, one id or a list, of generation_config.json, of config.json and of its
// text_config, then `extra`; each once, in this order. All sources count, so that a list in one file is not lost to a
// single id in the other. Both arguments are the files' text; empty text stands for a file that does not exist.
// Throws Error(checkpoint) that names file and field for text that is not JSON, a key that occurs twice, or an id that
// is not a whole number in the vocabulary; Error(request) for a negative id in `extra`.
std::vector<std::int32_t> stop_ids(std::string_view generation_config_json, std::string_view config_json,
                                   std::span<const std::int32_t> extra = {}, const StopSource& source = {});

}  // namespace facet::gemma4
