// What a right file becomes.
#include "facet/config/config.h"

#include <gmock/gmock.h>

#include "config_test_support.h"

namespace facet {
namespace {

using testing::ElementsAre;
using testing_support::kMinimal;
using testing_support::parse;

constexpr std::string_view kFull = R"([model]
path = "../checkpoints/m"
head = "int8"
[engine]
device = "cpu"
max_sequences = 3
max_context = 1000
max_step_tokens = 96
prefill_chunk = 96
threads = 2
cpu_isa = "avx2"
[linear]
plugin = "w4a16"
fallback = ["reference"]
[[linear.rules]]
layers = "*.mlp.*"
min_rows = 65
plugin = "dequant_gemm"
options = { tile = 64 }
[[linear.rules]]
layers = "lm_head"
max_rows = 4
plugin = "dense"
[attention]
plugin = "flash"
fallback = ["reference"]
options = { query_chunk = 384, exact = true }
[attention.sliding]
options = { query_chunk = 128, scale = 0.5 }
[attention.global]
plugin = "./mine.so"
[kv_cache.sliding]
plugin = "ring"
[kv_cache.global]
plugin = "paged"
options = { dtype = "int8" }
[scheduler]
plugin = "continuous"
[plugins]
path = ["plugins", "/opt/facet"]
)";

TEST(LoadConfig, ReadsEveryKey) {
  const Config config = parse(kFull);
  EXPECT_EQ(config.model.path, "/checkpoints/m");
  EXPECT_EQ(config.model.head, "int8");
  const EngineConfig engine{"cpu", 3, 1000, 96, 96, 2, "avx2"};
  EXPECT_EQ(config.engine, engine);
  EXPECT_EQ(config.scheduler.plugin, "continuous");
  EXPECT_THAT(config.plugin_paths, ElementsAre("/conf/plugins", "/opt/facet"));
  EXPECT_EQ(config.base, "/conf");
  EXPECT_EQ(config.file, "");
}

TEST(LoadConfig, KeepsRulesInOrderWithTheDefaultLast) {
  const Config config = parse(kFull);
  ASSERT_EQ(config.linear.size(), 3u);
  EXPECT_EQ(config.linear[0].layers, "*.mlp.*");
  EXPECT_EQ(config.linear[0].min_rows, 65);
  EXPECT_EQ(config.linear[0].max_rows, 0);
  EXPECT_EQ(config.linear[0].choice.plugin, "dequant_gemm");
  EXPECT_EQ(config.linear[0].choice.key_path, "linear.rules[0]");
  EXPECT_EQ(config.linear[0].choice.line, 18);
  ASSERT_EQ(config.linear[0].choice.options.size(), 1u);
  EXPECT_EQ(config.linear[0].choice.options[0].line, 19);
  EXPECT_EQ(config.linear[0].choice.options[0].key_path, "linear.rules[0].options.tile");
  EXPECT_EQ(config.linear[1].layers, "lm_head");
  EXPECT_EQ(config.linear[1].min_rows, 1);
  EXPECT_EQ(config.linear[1].max_rows, 4);
  EXPECT_EQ(config.linear[2].layers, "*");
  EXPECT_EQ(config.linear[2].choice.plugin, "w4a16");
  EXPECT_THAT(config.linear[2].choice.fallback, ElementsAre("reference"));
}

TEST(LoadConfig, AGroupWithoutItsOwnPluginAddsItsOptionsToTheDefault) {
  const PluginChoice& sliding = parse(kFull).attention_sliding;
  EXPECT_EQ(sliding.plugin, "flash");
  EXPECT_THAT(sliding.fallback, ElementsAre("reference"));
  const std::vector<OptionEntry> expected = {
      {"exact", true, 0, ""}, {"query_chunk", 128, 0, ""}, {"scale", 0.5, 0, ""}};
  EXPECT_EQ(sliding.options, expected);
  EXPECT_EQ(sliding.key_path, "attention");
  EXPECT_EQ(sliding.options[1].key_path, "attention.sliding.options.query_chunk");
}

TEST(LoadConfig, AGroupWithItsOwnPluginTakesNothingFromTheDefault) {
  const PluginChoice& global = parse(kFull).attention_global;
  EXPECT_EQ(global.plugin, "./mine.so");
  EXPECT_TRUE(global.fallback.empty());
  EXPECT_TRUE(global.options.empty());
  EXPECT_EQ(global.key_path, "attention.global");
}

TEST(LoadConfig, OneDefaultServesBothGroups) {
  const Config config = parse(kMinimal);
  EXPECT_EQ(config.kv_sliding, config.kv_global);
  EXPECT_EQ(config.kv_sliding.plugin, "static");
  EXPECT_EQ(config.kv_sliding.key_path, "kv_cache");
  EXPECT_EQ(config.engine, EngineConfig{});
  EXPECT_TRUE(config.plugin_paths.empty());
}

TEST(LoadConfig, AcceptsAByteOrderMarkAndWindowsLineEnds) {
  std::string text = "\xEF\xBB\xBF";
  for (const char c : kMinimal) text += c == '\n' ? std::string("\r\n") : std::string(1, c);
  EXPECT_EQ(parse(text), parse(kMinimal));
}

TEST(LoadConfig, PluginPathsAreToldFromNames) {
  for (const char* path : {"./a.so", "a.so", "plugins/a", "/x/a.so", "../a"}) EXPECT_TRUE(is_plugin_path(path)) << path;
  for (const char* name : {"flash", "so", "w4a16", "a.sox"}) EXPECT_FALSE(is_plugin_path(name)) << name;
}

}  // namespace
}  // namespace facet
