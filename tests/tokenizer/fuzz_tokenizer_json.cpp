// Any bytes as tokenizer.json: either an Error that names the file, or a tokenizer that encodes and decodes.
// Built for libFuzzer with FACET_FUZZ; fuzz_corpus_test.cpp runs it on a fixed set of mutations.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "facet/base/error.h"
#include "facet/tokenizer/stream_decoder.h"
#include "facet/tokenizer/tokenizer.h"
#include "facet/tokenizer/utf8.h"

namespace {

void check(bool holds) {
  if (!holds) std::abort();
}

void use(const facet::Tokenizer& tokenizer) {
  constexpr std::string_view kText = "abc ab  <bos>caab<code>\xE2\x96\x81 x\xF0\x9F\x98\x80\n";
  for (const bool parse_special : {false, true}) {
    const auto ids = tokenizer.encode(kText, {true, parse_special});
    facet::StreamDecoder stream(tokenizer, false);
    std::string streamed;
    for (const std::int32_t id : ids) {
      check(id >= 0 && id < tokenizer.size());
      streamed += stream.push(id);
    }
    streamed += stream.finish();
    check(streamed == tokenizer.decode(ids, false));
    check(facet::find_invalid_utf8(streamed) == std::string_view::npos);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    use(facet::Tokenizer::parse(std::string_view(reinterpret_cast<const char*>(data), size), "fuzz.json"));
  } catch (const facet::Error& error) {
    check(error.message().find("fuzz.json") != std::string::npos);
  }
  return 0;
}
