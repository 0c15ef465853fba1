// The fuzz entry over a corpus and seeded mutations of it, so that every test run covers it without libFuzzer.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <random>
#include <string>
#include <vector>

#include "config_test_support.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace facet {
namespace {

const std::vector<std::string>& corpus() {
  static const std::vector<std::string> texts = {
      "",
      std::string(testing_support::kMinimal),
      std::string(testing_support::kMinimal) +
          "a = 1\nb = 1.5\nc = true\nd = 'x'\n[[linear.rules]]\nlayers = \"*\"\n"
          "min_rows = 2\nplugin = \"./a.so\"\noptions = { q = -inf, \"r s\" = 0x1F }\n",
      "[engine]\nmax_sequences = 0b11\nthreads = 1_000\nprefill_chunk = 0o7\n",
      "a = [[1, 2], [\"x\", {b = 1979-05-27T07:32:00Z}]]\n",
      "a.b.c = 1\n[d.\"e f\".'g']\nh = \"\"\"\nmulti \\\n line\"\"\"\ni = '''lit'''\n",
      "k = \"\\u00E9\\U0001F600\\t\"\n",
      "[[a]]\n[[a.b]]\n[a.b.c]\n[[a]]\n",
      std::string("\xEF\xBB\xBF[model]\r\npath = \"m\\u0000\"\r\n"),
  };
  return texts;
}

std::string mutated(std::mt19937_64& random) {
  static const std::vector<std::string> kPieces = {"[",
                                                   "]",
                                                   "[[",
                                                   "]]",
                                                   "{",
                                                   "}",
                                                   "=",
                                                   ".",
                                                   ",",
                                                   "\"",
                                                   "'",
                                                   "\"\"\"",
                                                   "'''",
                                                   "\\",
                                                   "\\u",
                                                   "\n",
                                                   "\r",
                                                   "\0",
                                                   "#",
                                                   "nan",
                                                   "-inf",
                                                   "1e400",
                                                   "9223372036854775808",
                                                   "-9223372036854775808",
                                                   "0x",
                                                   "1979-05-27",
                                                   "24:61:61",
                                                   "${A}",
                                                   "\xFF",
                                                   "\xEF\xB8\x8F",
                                                   "\xEF\xB4\xBE",
                                                   "\xC3",
                                                   "\xED\xA0\x80",
                                                   "plugin",
                                                   "options",
                                                   "rules",
                                                   "model",
                                                   "a.a.a.a.a.a",
                                                   "true",
                                                   "_"};
  const auto below = [&random](std::size_t n) { return std::uniform_int_distribution<std::size_t>(0, n - 1)(random); };
  // Half of them start from a file that is right, so that a fair share stays right.
  std::string text = below(2) == 0 ? corpus()[1 + below(2)] : corpus()[below(corpus().size())];
  for (std::size_t edits = 1 + below(4); edits > 0; --edits) {
    const std::size_t at = below(text.size() + 1);
    const std::size_t length = std::min(below(12), text.size() - at);
    switch (below(5)) {
      case 0:
        text.erase(at, length);
        break;
      case 1:
        text.insert(at, kPieces[below(kPieces.size())]);
        break;
      case 2:
        text.insert(at, text.substr(below(text.size() + 1), below(60) + 1));
        break;
      case 3:
        if (at < text.size()) text[at] = static_cast<char>(below(256));
        break;
      default:
        text.insert(at, corpus()[below(corpus().size())]);
        break;
    }
  }
  return text;
}

void expect_only_errors(const std::string& text) {
  try {
    LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(text.data()), text.size());
  } catch (const std::exception& error) {
    ADD_FAILURE() << "exception other than a configuration error: " << error.what() << "\nfor\n" << text;
  }
}

TEST(FuzzToml, CorpusGivesConfigsOrErrors) {
  for (const std::string& text : corpus()) expect_only_errors(text);
}

TEST(FuzzToml, MutationsGiveConfigsOrErrors) {
  constexpr std::uint64_t kSeed = 20240607;
  SCOPED_TRACE(fmt::format("seed {}", kSeed));
  std::mt19937_64 random(kSeed);
  int accepted = 0;
  for (int i = 0; i < 2000; ++i) {
    const std::string text = mutated(random);
    expect_only_errors(text);
    try {
      testing_support::parse(text);
      ++accepted;
    } catch (const Error&) {
    }
  }
  // Both sides must be met, or the mutations are too wild or too tame to say anything.
  EXPECT_GT(accepted, 20);
  EXPECT_LT(accepted, 1900);
}

TEST(FuzzToml, EveryPrefixOfAFileGivesAConfigOrErrors) {
  const std::string& text = corpus()[2];
  for (std::size_t size = 0; size <= text.size(); ++size) expect_only_errors(text.substr(0, size));
}

}  // namespace
}  // namespace facet
