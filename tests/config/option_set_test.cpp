// Options of the file held against a schema.
#include <gmock/gmock.h>

#include <limits>

#include "facet/config/options.h"
#include "facet/sdk/export.h"

namespace facet {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr const char* kTypes[] = {"fp32", "bf16", "int8"};
constexpr abi::OptionSpec free_text(const char* name) {
  abi::OptionSpec spec = sdk::boolean_option(name, false, "any name | at all");
  spec.type = abi::OptionType::text;
  return spec;
}
const abi::OptionSpec kSpecs[] = {
    sdk::integer_option("block_tokens", 32, 16, 1024, "tokens", "positions in one block"),
    sdk::real_option("reserve", 0.5, 0.0, 1.0, "", "share kept free"),
    sdk::boolean_option("reuse", true, "keep prefixes"),
    sdk::choice_option("dtype", "bf16", kTypes, "element type"),
    free_text("label"),
    sdk::integer_option("seed", -1, std::numeric_limits<std::int64_t>::min(), std::numeric_limits<std::int64_t>::max(),
                        "", "any number"),
};

abi::PluginDescriptor descriptor(bool with_options = true) {
  abi::PluginDescriptor result{};
  result.size = sizeof result;
  result.name = "paged";
  result.version = "1.2.3";
  result.options = with_options ? kSpecs : nullptr;
  result.option_count = with_options ? static_cast<std::uint32_t>(std::size(kSpecs)) : 0;
  return result;
}

struct Resolved {
  std::string text;
  std::vector<std::string> problems;
};

Resolved resolve(const abi::PluginDescriptor& plugin, std::vector<OptionEntry> options) {
  PluginChoice choice;
  choice.plugin = "paged";
  choice.options = std::move(options);
  int line = 10;
  for (OptionEntry& entry : choice.options) {
    entry.line = line++;
    entry.key_path = "kv_cache.options." + entry.name;
  }
  Problems problems;
  const OptionSet set = resolve_options(plugin, choice, "run.toml", problems);
  return {set.to_string(), problems.lines()};
}

constexpr const char* kDefaults = "block_tokens=32 reserve=0.5 reuse=true dtype=bf16 label= seed=-1";

TEST(OptionSet, HoldsTheDefaultsInOrder) {
  const abi::PluginDescriptor plugin = descriptor();
  const OptionSet set(plugin);
  EXPECT_EQ(set.to_string(), kDefaults);
  const abi::Options view = set.view();
  EXPECT_EQ(view.size, sizeof view);
  ASSERT_EQ(view.count, std::size(kSpecs));
  for (std::uint32_t i = 0; i < view.count; ++i) {
    EXPECT_EQ(view.values[i].size, sizeof(abi::OptionValue));
    EXPECT_EQ(view.values[i].type, kSpecs[i].type);
  }
}

TEST(OptionSet, TakesEveryTypeAndSurvivesAMove) {
  const abi::PluginDescriptor plugin = descriptor();
  PluginChoice choice;
  // Short enough for the small-string buffer, whose address a moved std::string would not keep.
  choice.options = {{"block_tokens", std::int64_t{64}, 1, "a"},
                    {"reserve", std::int64_t{1}, 2, "b"},
                    {"reuse", false, 3, "c"},
                    {"dtype", std::string("int8"), 4, "d"},
                    {"label", std::string("x y"), 5, "e"},
                    {"seed", std::int64_t{7}, 6, "f"}};
  Problems problems;
  OptionSet first = resolve_options(plugin, choice, "run.toml", problems);
  EXPECT_TRUE(problems.empty()) << testing::PrintToString(problems.lines());
  const OptionSet set = std::move(first);
  EXPECT_EQ(set.to_string(), "block_tokens=64 reserve=1 reuse=false dtype=int8 label=x y seed=7");
  const abi::Options view = set.view();
  const sdk::OptionReader reader(kSpecs, static_cast<std::uint32_t>(std::size(kSpecs)), view);
  EXPECT_EQ(reader.integer("block_tokens"), 64);
  EXPECT_EQ(reader.real("reserve"), 1.0);
  EXPECT_FALSE(reader.boolean("reuse"));
  EXPECT_EQ(reader.text("dtype"), "int8");
  EXPECT_EQ(reader.text("label"), "x y");
  EXPECT_EQ(set.entries().at(1).value, OptionData(1.0));
}

TEST(OptionSet, UnknownNamesGetTheNearestAndTheWholeList) {
  const Resolved near = resolve(descriptor(), {{"blok_token", std::int64_t{4}, 0, ""}});
  EXPECT_THAT(near.problems,
              ElementsAre("run.toml:10: kv_cache.options.blok_token: unknown option 'blok_token' of plugin 'paged' "
                          "1.2.3; did you mean 'block_tokens'? Its options: block_tokens, reserve, reuse, dtype, "
                          "label, seed"));
  EXPECT_EQ(near.text, kDefaults);
  EXPECT_THAT(resolve(descriptor(), {{"block-tokens", std::int64_t{64}, 0, ""}}).problems,
              ElementsAre(HasSubstr("did you mean 'block_tokens'?")));
  EXPECT_THAT(resolve(descriptor(), {{"Reuse", true, 0, ""}}).problems,
              ElementsAre(HasSubstr("did you mean 'reuse'?")));
  // An option of another plugin is just unknown here.
  EXPECT_THAT(
      resolve(descriptor(), {{"query_chunk", std::int64_t{64}, 0, ""}}).problems,
      ElementsAre(HasSubstr("unknown option 'query_chunk' of plugin 'paged' 1.2.3; its options: block_tokens")));
  EXPECT_THAT(resolve(descriptor(false), {{"x", true, 0, ""}}).problems, ElementsAre(HasSubstr("has no options")));
}

TEST(OptionSet, WrongTypesNameBoth) {
  const Resolved wrong = resolve(descriptor(), {{"block_tokens", 64.0, 0, ""},
                                                {"reserve", std::string("0.5"), 0, ""},
                                                {"reuse", std::int64_t{1}, 0, ""},
                                                {"dtype", true, 0, ""}});
  EXPECT_THAT(wrong.problems,
              ElementsAre(HasSubstr("run.toml:10: kv_cache.options.block_tokens: option of plugin "
                                    "'paged' 1.2.3 must be an integer (tokens), found the real number 64"),
                          HasSubstr("run.toml:11: kv_cache.options.reserve: option of plugin 'paged' "
                                    "1.2.3 must be a number, found the string '0.5'"),
                          HasSubstr("must be true or false, found the integer 1"),
                          HasSubstr("must be a string, found the boolean true")));
  EXPECT_EQ(wrong.text, kDefaults);
}

TEST(OptionSet, RangesAreInclusiveAndQuoted) {
  for (const std::int64_t good : {16, 1024}) {
    EXPECT_TRUE(resolve(descriptor(), {{"block_tokens", good, 0, ""}}).problems.empty()) << good;
  }
  for (const std::int64_t bad : {15, 1025, -1}) {
    EXPECT_THAT(resolve(descriptor(), {{"block_tokens", bad, 0, ""}}).problems,
                ElementsAre(HasSubstr(fmt::format("must be 16 to 1024 (tokens), found {}", bad))));
  }
  for (const double bad :
       {-0.001, 1.001, std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    EXPECT_THAT(resolve(descriptor(), {{"reserve", bad, 0, ""}}).problems,
                ElementsAre(HasSubstr("must be 0 to 1, found")))
        << bad;
  }
  EXPECT_THAT(resolve(descriptor(), {{"dtype", std::string("BF16"), 0, ""}}).problems,
              ElementsAre(HasSubstr("must be one of fp32, bf16, int8, found 'BF16'; did you mean 'bf16'?")));
  EXPECT_THAT(resolve(descriptor(), {{"label", std::string("a\0b", 3), 0, ""}}).problems,
              ElementsAre(HasSubstr("NUL")));
}

TEST(OptionSet, ANameGivenTwiceIsRefused) {
  EXPECT_THAT(
      resolve(descriptor(), {{"reuse", true, 0, ""}, {"reuse", false, 0, ""}}).problems,
      ElementsAre(HasSubstr("run.toml:11: kv_cache.options.reuse: option of plugin 'paged' 1.2.3 given twice")));
}

TEST(OptionTable, ShowsTheSchemaAsMarkdown) {
  const std::string table = option_table(descriptor());
  EXPECT_THAT(table, HasSubstr("| option | type | default | values | unit | meaning |\n|---|---|---|---|---|---|\n"));
  EXPECT_THAT(table, HasSubstr("| `block_tokens` | integer | `32` | 16 to 1024 | tokens | positions in one block |\n"));
  EXPECT_THAT(table, HasSubstr("| `reserve` | real | `0.5` | 0 to 1 |  | share kept free |\n"));
  EXPECT_THAT(table, HasSubstr("| `reuse` | boolean | `true` | true, false |"));
  EXPECT_THAT(table, HasSubstr("| `dtype` | string | `\"bf16\"` | fp32, bf16, int8 |"));
  EXPECT_THAT(table, HasSubstr("| `label` | string | `\"\"` | any text |  | any name \\| at all |\n"));
  EXPECT_THAT(table, HasSubstr("| `seed` | integer | `-1` | any |"));
  EXPECT_EQ(option_table(descriptor(false)), "No options.\n");
}

}  // namespace
}  // namespace facet
