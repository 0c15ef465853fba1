#include <algorithm>
#include <cmath>
#include <type_traits>

#include "facet/base/error.h"
#include "facet/config/config.h"

namespace facet {
namespace {

// Length of the UTF-8 sequence at `at`, or 0 when there is none (overlong forms and surrogates included).
std::size_t utf8_length(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t i) -> unsigned {
    return at + i < text.size() ? static_cast<unsigned char>(text[at + i]) : 0u;
  };
  const unsigned lead = byte(0);
  if (lead < 0x80) return 1;
  const std::size_t length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
  }
  const unsigned second = byte(1);
  const bool wrong = (lead == 0xE0 && second < 0xA0) || (lead == 0xED && second > 0x9F) ||
                     (lead == 0xF0 && second < 0x90) || (lead == 0xF4 && second > 0x8F);
  return wrong ? 0 : length;
}

std::string toml_text(std::string_view text) {
  std::string result = "\"";
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t length = utf8_length(text, i);
    if (length == 0) {
      throw_error(ErrorKind::config,
                  "'{}' holds bytes that are not UTF-8 (at byte {}), so it cannot be written as TOML; rename it", text,
                  i);
    }
    const char c = text[i];
    if (c == '"' || c == '\\') {
      result += '\\';
      result += c;
    } else if (length == 1 && (static_cast<unsigned char>(c) < 0x20 || c == 0x7F)) {
      result += fmt::format("\\u{:04X}", static_cast<unsigned>(c));
    } else {
      result.append(text.substr(i, length));
    }
    i += length;
  }
  return result + "\"";
}

std::string toml_key(const std::string& name) {
  const auto bare = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
  };
  return !name.empty() && std::all_of(name.begin(), name.end(), bare) ? name : toml_text(name);
}

std::string toml_real(double value) {
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  std::string text = fmt::format("{}", value);  // the shortest text that reads back as the same number
  if (text.find_first_of(".en") == std::string::npos) text += ".0";
  return text;
}

std::string toml_value(const OptionData& data) {
  return std::visit(
      [](const auto& value) -> std::string {
        using Value = std::decay_t<decltype(value)>;
        if constexpr (std::is_same_v<Value, std::string>) {
          return toml_text(value);
        } else if constexpr (std::is_same_v<Value, double>) {
          return toml_real(value);
        } else {
          return fmt::format("{}", value);
        }
      },
      data);
}

template <typename Items, typename ToText>
std::string toml_list(const Items& items, const char* open, const char* close, ToText to_text) {
  std::string text = open;
  const char* separator = "";
  for (const auto& item : items) {
    text += separator + to_text(item);
    separator = ", ";
  }
  return text + close;
}

// A path that means the same wherever the text is saved.
std::string portable_plugin(const Config& config, const std::string& plugin) {
  return is_plugin_path(plugin) ? plugin_file(config, plugin).string() : plugin;
}

PluginChoice portable(const Config& config, PluginChoice choice) {
  choice.plugin = portable_plugin(config, choice.plugin);
  for (std::string& plugin : choice.fallback) plugin = portable_plugin(config, plugin);
  // The reader gives options by name; a choice made by hand may have them in any order.
  std::sort(choice.options.begin(), choice.options.end(),
            [](const OptionEntry& a, const OptionEntry& b) { return a.name < b.name; });
  return choice;
}

Config portable(const Config& config) {
  Config result = config;
  for (LinearRule& rule : result.linear) rule.choice = portable(config, std::move(rule.choice));
  for (PluginChoice* choice : {&result.attention_sliding, &result.attention_global, &result.kv_sliding,
                               &result.kv_global, &result.scheduler}) {
    *choice = portable(config, std::move(*choice));
  }
  return result;
}

std::string toml_plugin(const PluginChoice& choice) {
  const auto option = [](const OptionEntry& entry) {
    return fmt::format("{} = {}", toml_key(entry.name), toml_value(entry.value));
  };
  return fmt::format("plugin = {}\noptions = {}\n", toml_text(choice.plugin),
                     toml_list(choice.options, "{", "}", option));
}

std::string toml_choice(const PluginChoice& choice) {
  return toml_plugin(choice) + fmt::format("fallback = {}\n", toml_list(choice.fallback, "[", "]", toml_text));
}

std::string toml_engine(const EngineConfig& engine) {
  return fmt::format(
      "device = {}\nmax_sequences = {}\nmax_context = {}\nmax_step_tokens = {}\nprefill_chunk = {}\nthreads = {}\n"
      "cpu_isa = {}\nkv_form = {}\n",
      toml_text(engine.device), engine.max_sequences, engine.max_context, engine.max_step_tokens, engine.prefill_chunk,
      engine.threads, toml_text(engine.cpu_isa), toml_text(engine.kv_form));
}

std::string toml_rule(const LinearRule& rule) {
  return fmt::format("[[linear.rules]]\nlayers = {}\nmin_rows = {}\nmax_rows = {}\n{}", toml_text(rule.layers),
                     rule.min_rows, rule.max_rows, toml_choice(rule.choice));
}

std::string toml_linear(const std::vector<LinearRule>& linear) {
  const bool has_standard =
      !linear.empty() && linear.back().layers == "*" && linear.back().min_rows <= 1 && linear.back().max_rows == 0;
  if (!has_standard) {
    throw_error(ErrorKind::config, "linear: {} rules, but the last one does not match every layer and row count",
                linear.size());
  }
  std::string text = "\n[linear]\n" + toml_choice(linear.back().choice);
  for (std::size_t i = 0; i + 1 < linear.size(); ++i) text += "\n" + toml_rule(linear[i]);
  return text;
}

}  // namespace

bool Config::operator==(const Config& other) const {
  const Config a = portable(*this);
  const Config b = portable(other);
  return a.model == b.model && a.engine == b.engine && a.linear == b.linear &&
         a.attention_sliding == b.attention_sliding && a.attention_global == b.attention_global &&
         a.kv_sliding == b.kv_sliding && a.kv_global == b.kv_global && a.scheduler == b.scheduler &&
         a.plugin_paths == b.plugin_paths;
}

std::string to_toml(const Config& config, const LinearRule& rule) {
  LinearRule whole = rule;
  whole.choice = portable(config, rule.choice);
  return toml_rule(whole);
}

std::string to_toml(const Config& config) {
  const Config whole = portable(config);
  const auto path_text = [](const std::filesystem::path& path) { return toml_text(path.string()); };
  std::string text = whole.model.synthetic.empty()
                         ? fmt::format("[model]\npath = {}\n", path_text(whole.model.path))
                         : fmt::format("[model]\nsynthetic = {}\n", toml_text(whole.model.synthetic));
  text += fmt::format("head = {}\n", toml_text(whole.model.head));
  text += "\n[engine]\n" + toml_engine(whole.engine);
  text += toml_linear(whole.linear);
  text += "\n[attention.sliding]\n" + toml_choice(whole.attention_sliding);
  text += "\n[attention.global]\n" + toml_choice(whole.attention_global);
  text += "\n[kv_cache.sliding]\n" + toml_choice(whole.kv_sliding);
  text += "\n[kv_cache.global]\n" + toml_choice(whole.kv_global);
  text += "\n[scheduler]\n" + toml_plugin(whole.scheduler);
  text += "\n[plugins]\npath = " + toml_list(whole.plugin_paths, "[", "]", path_text) + "\n";
  return text;
}

}  // namespace facet
