#include "facet/tokenizer/stream_decoder.h"

#include "facet/tokenizer/utf8.h"
#include "tokenizer_data.h"

namespace facet {

namespace {
constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD
}

void Utf8Joiner::push_byte(char byte, std::string& out) {
  bytes_[count_++] = byte;
  // At most one state change a byte leaves pending bytes that must be looked at again: a wrong one is dropped from the
  // front.
  while (count_ > 0) {
    const Utf8Step step = inspect_utf8(std::string_view(bytes_, static_cast<std::size_t>(count_)));
    if (step.state == Utf8Step::State::incomplete) return;
    if (step.state == Utf8Step::State::complete) {
      out.append(bytes_, static_cast<std::size_t>(step.length));
      count_ = 0;  // a character becomes whole with its last byte, so nothing is behind it
      return;
    }
    out += kReplacement;
    for (int index = 1; index < count_; ++index) bytes_[index - 1] = bytes_[index];
    --count_;
  }
}

void Utf8Joiner::push_text(std::string_view text, std::string& out) {
  for (; count_ > 0; --count_) out += kReplacement;
  out += text;
}

void Utf8Joiner::finish(std::string& out) {
  if (count_ > 0) out += kReplacement;
  count_ = 0;
}

std::string StreamDecoder::push(std::int32_t id) {
  data_->check_id(id);
  std::string text;
  if (skip_special_ && data_->special[static_cast<std::size_t>(id)] != 0) return text;
  const std::int16_t byte = data_->decoded_bytes[static_cast<std::size_t>(id)];
  if (byte >= 0) {
    joiner_.push_byte(static_cast<char>(byte), text);
  } else {
    joiner_.push_text(data_->decoded(id), text);
  }
  return text;
}

std::string StreamDecoder::finish() {
  std::string text;
  joiner_.finish(text);
  return text;
}

}  // namespace facet
