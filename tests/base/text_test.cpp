#include "facet/base/text.h"

#include <gtest/gtest.h>

namespace facet {
namespace {

TEST(EditDistance, CountsSingleCharacterEdits) {
  EXPECT_EQ(edit_distance("", ""), 0);
  EXPECT_EQ(edit_distance("", "abc"), 3);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3);
  EXPECT_EQ(edit_distance("kv_cahce", "kv_cache"), 2);
}

TEST(NearestName, FindsTheClosestOrNothing) {
  const std::vector<std::string> names = {"block_tokens", "pool_tokens", "storage"};
  EXPECT_EQ(nearest_name("block-tokens", names), "block_tokens");
  EXPECT_EQ(nearest_name("blocktokns", names), "block_tokens");
  EXPECT_EQ(nearest_name("temperature", names), "");
  EXPECT_EQ(nearest_name("x", {}), "");
}

TEST(GlobMatch, StarAndQuestionMark) {
  EXPECT_TRUE(glob_match("*", ""));
  EXPECT_TRUE(glob_match("*.mlp.*", "layers.3.mlp.gate_proj"));
  EXPECT_FALSE(glob_match("*.mlp.*", "layers.3.self_attn.q_proj"));
  EXPECT_TRUE(glob_match("layers.?.mlp.down_proj", "layers.7.mlp.down_proj"));
  EXPECT_FALSE(glob_match("layers.?.mlp.down_proj", "layers.17.mlp.down_proj"));
  EXPECT_TRUE(glob_match("a*b*c", "axxbyybzzc"));
  EXPECT_FALSE(glob_match("a*b*c", "axxbyybzz"));
  EXPECT_FALSE(glob_match("lm_head", "LM_HEAD"));
}

TEST(GlobMatch, ManyStarsStayFast) {
  // Backtracking over every star would need 2^25 steps here.
  std::string pattern, text(4000, 'a');
  for (int i = 0; i < 25; ++i) pattern += "*a";
  EXPECT_FALSE(glob_match(pattern + "b", text));
}

TEST(FormatBytes, ThreeSignificantDigits) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1024), "1.00 KiB");
  EXPECT_EQ(format_bytes(12 * 1024), "12.0 KiB");
  EXPECT_EQ(format_bytes(352ull << 20), "352 MiB");
  EXPECT_EQ(format_bytes(3ull << 30), "3.00 GiB");
}

TEST(JsonDepth, CountsOutsideOfStrings) {
  EXPECT_EQ(json_depth(""), 0);
  EXPECT_EQ(json_depth("{\"a\": [1, {\"b\": []}]}"), 4);
  EXPECT_EQ(json_depth("[\"[[[[\\\"[[\", 1]"), 1);
  EXPECT_EQ(json_depth("]]][[["), 0);
  EXPECT_EQ(json_depth(std::string(200000, '[')), 200000);
}

TEST(Fnv1a, KnownValuesAndChaining) {
  // Values of the published test suite of FNV.
  EXPECT_EQ(fnv1a("", 0), 0xcbf29ce484222325ull);
  EXPECT_EQ(fnv1a("a", 1), 0xaf63dc4c8601ec8cull);
  EXPECT_EQ(fnv1a("foobar", 6), 0x85944171f73967e8ull);
  EXPECT_EQ(fnv1a("bar", 3, fnv1a("foo", 3)), fnv1a("foobar", 6));
}

}  // namespace
}  // namespace facet
