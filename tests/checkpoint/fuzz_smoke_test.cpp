// Runs the fuzz entry in plain builds: a small corpus and seeded mutations of it.
#include <random>

#include "file_builder.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace facet::test {
namespace {

int feed(const std::string& bytes) {
  return LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size());
}

std::vector<std::string> corpus() {
  return {"",
          std::string(8, '\0'),
          image("{}", ""),
          image("{\"__metadata__\":{\"format\":\"pt\"}}", "tail"),
          FileBuilder().add<std::uint16_t>("a", "BF16", {2, 2}, {1, 2, 3, 4}).build(),
          FileBuilder()
              .add<float>("scalar", "F32", {}, {1})
              .add<std::uint8_t>("none", "U8", {0, 9}, {})
              .add<std::int64_t>("shape", "I64", {2}, {3, 4})
              .build()};
}

std::string mutate(std::string bytes, std::mt19937& random) {
  const char* const kTokens[] = {"18446744073709551615",
                                 "9223372036854775807",
                                 "-1",
                                 "[",
                                 "]",
                                 "{",
                                 "}",
                                 "\"",
                                 ",",
                                 ":",
                                 "1e400",
                                 "null",
                                 "\"shape\"",
                                 "\"dtype\"",
                                 "\"I64\"",
                                 "\\u0000",
                                 "\xff"};
  const auto changes = 1 + random() % 4;
  for (unsigned i = 0; i < changes; ++i) {
    const std::size_t at = bytes.empty() ? 0 : random() % bytes.size();
    switch (random() % 5) {
      case 0:
        if (!bytes.empty())
          bytes[at] = static_cast<char>(static_cast<unsigned char>(bytes[at]) ^ (1u << (random() % 8)));
        break;
      case 1:
        bytes.erase(at, random() % 8);
        break;
      case 2:
        bytes.insert(at, kTokens[random() % std::size(kTokens)]);
        break;
      case 3:
        bytes.resize(at);
        break;
      default:
        bytes.insert(at, bytes.substr(at, random() % 40));
    }
  }
  // Half of them get a right header length again, so that the JSON reader is reached.
  if (bytes.size() >= 8 && random() % 2 == 0) {
    const std::size_t header = random() % 4 == 0 ? random() % (bytes.size() - 7) : bytes.rfind('}') - 7;
    if (header <= bytes.size() - 8) {
      for (std::size_t i = 0; i < 8; ++i) bytes[i] = static_cast<char>(std::uint64_t{header} >> (8 * i));
    }
  }
  return bytes;
}

TEST(FuzzSafetensors, CorpusAndMutations) {
  constexpr unsigned kSeed = 560058;
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  std::mt19937 random(kSeed);
  const std::vector<std::string> seeds = corpus();
  for (const std::string& seed : seeds) EXPECT_EQ(feed(seed), 0);
  for (int i = 0; i < 2000; ++i) EXPECT_EQ(feed(mutate(seeds[random() % seeds.size()], random)), 0);
}

}  // namespace
}  // namespace facet::test
