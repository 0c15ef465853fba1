// Ids to text one at a time, for output that is shown while it is made.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "facet/tokenizer/tokenizer.h"

namespace facet {

// Joins pieces of bytes into whole characters. Both decoders run on it, so they cannot differ.
class Utf8Joiner {
 public:
  // Appends a byte; writes to `out` what has become certain: a whole character, or one U+FFFD for each byte known to be
  // wrong.
  void push_byte(char byte, std::string& out);
  // Appends valid UTF-8 text; pending bytes can no longer become a character, each gives one U+FFFD.
  void push_text(std::string_view text, std::string& out);
  // End of the stream: pending bytes are a character cut off, which gives a single U+FFFD.
  void finish(std::string& out);
  // Bytes that wait for the rest of their character, 0 .. 3.
  int pending() const { return count_; }

 private:
  char bytes_[4] = {};
  int count_ = 0;
};

// For any ids: push(a) + push(b) + ... + finish() == Tokenizer::decode({a, b, ...}, skip_special).
class StreamDecoder {
 public:
  explicit StreamDecoder(const Tokenizer& tokenizer, bool skip_special = true)
      : data_(tokenizer.data_), skip_special_(skip_special) {}

  // Text that `id` completes, always whole characters, possibly empty. While bytes of a character are pending nothing
  // is emitted for them. Throws Error(request) for an unknown id and changes nothing.
  std::string push(std::int32_t id);
  // Ends the text: "" or one U+FFFD for a character cut off (a limit on tokens hit within it). Ready for a new text
  // after.
  std::string finish();
  // True when bytes wait for the rest of their character.
  bool pending() const { return joiner_.pending() > 0; }

 private:
  std::shared_ptr<const TokenizerData> data_;
  bool skip_special_;
  Utf8Joiner joiner_;
};

}  // namespace facet
