// The fuzz entry on a small corpus and on a fixed number of mutations of a valid file.
#include "fixtures.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace facet::test {
namespace {

int run(const std::string& text) {
  return LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(text.data()), text.size());
}

// Changes to bytes find faults in reading; changes to values find faults in what is made of them.
void mutate_bytes(std::string& text, std::mt19937_64& random) {
  const std::size_t at = random() % text.size();
  switch (random() % 4) {
    case 0:
      text[at] = static_cast<char>(random());
      break;
    case 1:
      text.erase(at, 1 + random() % 16);
      break;
    case 2:
      text.insert(at, text.substr(random() % text.size(), random() % 32));
      break;
    default:
      text[at] = "0123456789{}[]\",:"[random() % 17];
  }
}

void mutate_value(Json& value, std::mt19937_64& random) {
  const bool deeper = value.is_structured() && !value.empty() && random() % 8 != 0;
  if (deeper) {
    auto member = value.begin();
    std::advance(member, static_cast<std::ptrdiff_t>(random() % value.size()));
    if (random() % 12 == 0) {
      value.erase(member);
    } else {
      mutate_value(*member, random);
    }
    return;
  }
  const Json choices[] = {
      nullptr, true,  false, -1,       0,       5,     268,   1e300,         4294967296,     "",
      "a",     "abc", " ",   "<0x41>", "<bos>", kMark, "a b", Json::array(), Json::object(), Json::array({"a", "b"})};
  value = choices[random() % std::size(choices)];
}

TEST(TokenizerFuzz, Corpus) {
  for (const char* text :
       {"", "{}", "[]", "null", "{\"model\":{}}", "{\"model\":{\"vocab\":{\"\":0},\"merges\":[]}}",
        "{\"model\":{\"type\":\"BPE\",\"unk_token\":\"\",\"vocab\":{\"\":0},\"merges\":[]},"
        "\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"}]}}"}) {
    EXPECT_EQ(run(text), 0) << text;
  }
  EXPECT_EQ(run(tiny_document().dump()), 0);
  EXPECT_EQ(run(std::string(100'000, '[')), 0);
}

TEST(TokenizerFuzz, ThousandMutations) {
  const Json document = tiny_document();
  const std::string valid = document.dump();
  for (std::uint64_t seed = 1; seed <= 1000; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    std::mt19937_64 random(seed);
    std::string text = valid;
    if (seed % 2 == 0) {
      Json changed = document;
      for (std::uint64_t count = 1 + random() % 3; count > 0; --count) mutate_value(changed, random);
      text = changed.dump();
    } else {
      for (std::uint64_t count = 1 + random() % 4; count > 0 && !text.empty(); --count) mutate_bytes(text, random);
    }
    ASSERT_EQ(run(text), 0);
  }
}

}  // namespace
}  // namespace facet::test
