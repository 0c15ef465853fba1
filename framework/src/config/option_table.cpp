#include <cmath>
#include <limits>

#include "facet/config/options.h"

namespace facet {
namespace {

using abi::OptionSpec;
using abi::OptionType;

// '|' ends a cell of a Markdown table, even inside code.
std::string cell(std::string_view text) {
  std::string result;
  for (const char c : text) {
    if (c == '|') result += '\\';
    result += c == '\n' ? ' ' : c;
  }
  return result;
}

const char* type_name(OptionType type) {
  switch (type) {
    case OptionType::boolean:
      return "boolean";
    case OptionType::integer:
      return "integer";
    case OptionType::real:
      return "real";
    case OptionType::text:
      return "string";
  }
  return "unknown";
}

std::string default_text(const OptionSpec& spec) {
  switch (spec.type) {
    case OptionType::boolean:
      return spec.default_integer != 0 ? "true" : "false";
    case OptionType::integer:
      return fmt::format("{}", spec.default_integer);
    case OptionType::real:
      return fmt::format("{}", spec.default_real);
    case OptionType::text:
      break;
  }
  return fmt::format("\"{}\"", spec.default_text);
}

// "1 to 64", "at least 1", "any": a limit that is the limit of the type says nothing to a reader.
std::string range_text(const std::string& min, const std::string& max, bool has_min, bool has_max) {
  if (has_min && has_max) return min + " to " + max;
  if (has_min) return "at least " + min;
  return has_max ? "at most " + max : "any";
}

std::string values_text(const OptionSpec& spec) {
  if (spec.type == OptionType::boolean) return "true, false";
  if (spec.type == OptionType::integer) {
    using Limits = std::numeric_limits<std::int64_t>;
    return range_text(fmt::format("{}", spec.min_integer), fmt::format("{}", spec.max_integer),
                      spec.min_integer != Limits::min(), spec.max_integer != Limits::max());
  }
  if (spec.type == OptionType::real) {
    constexpr double kLargest = std::numeric_limits<double>::max();
    return range_text(fmt::format("{}", spec.min_real), fmt::format("{}", spec.max_real), spec.min_real > -kLargest,
                      spec.max_real < kLargest);
  }
  if (spec.choices == nullptr) return "any text";
  std::string text;
  for (std::uint32_t i = 0; i < spec.choice_count; ++i) text += (i == 0 ? "" : ", ") + std::string(spec.choices[i]);
  return text;
}

}  // namespace

std::string option_table(const abi::PluginDescriptor& descriptor) {
  if (descriptor.option_count == 0) return "No options.\n";
  std::string text = "| option | type | default | values | unit | meaning |\n|---|---|---|---|---|---|\n";
  for (std::uint32_t i = 0; i < descriptor.option_count; ++i) {
    const OptionSpec& spec = descriptor.options[i];
    text += fmt::format("| `{}` | {} | `{}` | {} | {} | {} |\n", cell(spec.name), type_name(spec.type),
                        cell(default_text(spec)), cell(values_text(spec)), cell(spec.unit), cell(spec.summary));
  }
  return text;
}

}  // namespace facet
