// to_toml writes every value, and what it writes is the same configuration.
#include <gmock/gmock.h>

#include <cmath>
#include <functional>
#include <limits>
#include <random>

#include "config_test_support.h"

namespace facet {
namespace {

class RandomConfig {
 public:
  explicit RandomConfig(std::uint64_t seed) : random_(seed) {}

  Config make() {
    Config config;
    config.base = "/base";
    if (number(0, 3) == 0) {
      config.model.synthetic = name();
    } else {
      config.model.path = "/" + name();
    }
    config.model.head = pick({"checkpoint", "bf16", "int8", "int4"});
    config.engine = {pick({"cpu", "cuda"}),
                     number(1, 99),
                     number(1, 99999),
                     number(512, 9999),
                     number(0, 512),
                     number(0, 64),
                     pick({"auto", "avx512", "avx2", "generic"})};
    for (std::int64_t i = number(0, 4); i > 0; --i) {
      LinearRule rule{name(), number(1, 100), 0, choice()};
      if (number(0, 1) == 1) rule.max_rows = rule.min_rows + number(0, 1000);
      config.linear.push_back(rule);
    }
    config.linear.push_back({"*", 1, 0, choice()});
    for (PluginChoice* one : {&config.attention_sliding, &config.attention_global, &config.kv_sliding,
                              &config.kv_global, &config.scheduler}) {
      *one = choice();
    }
    config.scheduler.fallback.clear();  // it has none
    for (std::int64_t i = number(0, 3); i > 0; --i) config.plugin_paths.push_back("/" + name());
    return config;
  }

 private:
  std::int64_t number(std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(random_);
  }
  std::string pick(std::vector<std::string> words) {
    return words[static_cast<std::size_t>(number(0, static_cast<std::int64_t>(words.size()) - 1))];
  }
  // Not empty, with everything that TOML must escape or quote.
  std::string name() {
    std::string text;
    for (std::int64_t i = number(1, 8); i > 0; --i) {
      text += pick({"a", "Z", "7", "_", "-", ".", " ", "\"", "\\", "'", "#", "=", "[", "{", "$", "*", "\xC3\xA9",
                    "\xE6\xA8\xA1", "\xF0\x9F\x98\x80"});
    }
    return text.find("${") == std::string::npos ? text : "x";
  }
  double real() {
    const double special[] = {0.0, -0.0, 1.0, 1e300, 5e-324, std::numeric_limits<double>::infinity(), -1e22, 0.1};
    if (number(0, 2) == 0) return special[number(0, 7)];
    return std::ldexp(std::uniform_real_distribution<double>(-1, 1)(random_), static_cast<int>(number(-900, 900)));
  }
  OptionData data() {
    using Limits = std::numeric_limits<std::int64_t>;
    switch (number(0, 4)) {
      case 0:
        return number(0, 1) == 1;
      case 1:
        return number(Limits::min(), Limits::max());
      case 2:
        return number(0, 1) == 1 ? Limits::min() : Limits::max();
      case 3:
        return real();
      default:
        return number(0, 4) == 0 ? std::string() : name();
    }
  }
  PluginChoice choice() {
    PluginChoice result;
    result.plugin = number(0, 3) == 0 ? "./" + name() : "plugin_" + name();
    for (std::int64_t i = number(0, 4); i > 0; --i) {
      result.options.push_back({fmt::format("{}{}", name(), i), data(), 0, ""});
    }
    for (std::int64_t i = number(0, 2); i > 0; --i) result.fallback.push_back(fmt::format("{}{}", name(), i));
    return result;
  }

  std::mt19937_64 random_;
};

TEST(RoundTrip, RandomConfigsComeBackEqual) {
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    const Config config = RandomConfig(seed).make();
    const std::string text = to_toml(config);
    SCOPED_TRACE(text);
    // Another base: the written text must not depend on it.
    const Config again = parse_config(text, "again.toml", "/another/base");
    ASSERT_EQ(again, config);
    ASSERT_EQ(to_toml(again), text);
  }
}

TEST(RoundTrip, EveryFieldCounts) {
  Config base = RandomConfig(7).make();
  base.model.path = "/x";
  base.model.synthetic.clear();
  const std::function<void(Config&)> changes[] = {
      [](Config& c) { c.model.path += "x"; },
      [](Config& c) { c.model.synthetic += "x"; },
      [](Config& c) { c.model.head += "x"; },
      [](Config& c) { c.engine.device += "x"; },
      [](Config& c) { ++c.engine.max_sequences; },
      [](Config& c) { ++c.engine.max_context; },
      [](Config& c) { ++c.engine.max_step_tokens; },
      [](Config& c) { ++c.engine.prefill_chunk; },
      [](Config& c) { ++c.engine.threads; },
      [](Config& c) { c.engine.cpu_isa += "x"; },
      [](Config& c) { c.linear.insert(c.linear.begin(), LinearRule{}); },
      [](Config& c) { c.linear.back().choice.plugin += "x"; },
      [](Config& c) { c.attention_sliding.plugin += "x"; },
      [](Config& c) { c.attention_global.fallback.push_back("x"); },
      [](Config& c) {
        c.kv_sliding.options.push_back({"zz", true, 0, ""});
      },
      [](Config& c) { c.kv_global.plugin += "x"; },
      [](Config& c) { c.scheduler.plugin += "x"; },
      [](Config& c) { c.plugin_paths.push_back("/x"); },
  };
  int index = 0;
  for (const auto& change : changes) {
    Config changed = base;
    change(changed);
    EXPECT_FALSE(changed == base) << "change " << index;
    EXPECT_NE(to_toml(changed), to_toml(base)) << "change " << index;
    ++index;
  }
}

TEST(RoundTrip, PlaceInTheFileDoesNotCount) {
  Config config = RandomConfig(8).make();
  Config moved = config;
  moved.file = "/elsewhere/x.toml";
  moved.model.line = 98;
  moved.model.written = "../elsewhere";
  moved.scheduler.line = 99;
  moved.scheduler.key_path = "elsewhere";
  EXPECT_EQ(moved, config);
}

TEST(RoundTrip, WhatTomlCannotHoldIsRefused) {
  Config config = RandomConfig(9).make();
  config.model.synthetic.clear();
  config.model.path = "/bad\xFF";
  EXPECT_THROW(to_toml(config), Error);
  for (const char* bad : {"\xC0\x80", "\xED\xA0\x80", "\xF4\x90\x80\x80", "\xE6\xA8", "\x80"}) {
    config.model.path = std::string("/") + bad;
    EXPECT_THROW(to_toml(config), Error) << "byte " << static_cast<int>(bad[0]);
  }
  config = RandomConfig(9).make();
  config.linear.clear();
  EXPECT_THROW(to_toml(config), Error);
}

}  // namespace
}  // namespace facet
