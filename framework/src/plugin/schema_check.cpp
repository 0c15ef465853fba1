#include "plugin/schema_check.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

namespace facet {

namespace {

constexpr std::size_t kMaxText = 4096;
// Bounds the walk over an array whose count may be garbage; real plugins have fewer than twenty options.
constexpr std::uint32_t kMaxOptions = 1024;

void check_integer(const std::string& at, const abi::OptionSpec& spec, Problems& problems) {
  if (spec.min_integer > spec.max_integer) {
    problems.add("{}.min_integer is {}, max_integer is {}; min must not be above max", at, spec.min_integer,
                 spec.max_integer);
  } else if (spec.default_integer < spec.min_integer || spec.default_integer > spec.max_integer) {
    problems.add("{}.default_integer is {}, the range is {} to {}; give a default inside", at, spec.default_integer,
                 spec.min_integer, spec.max_integer);
  }
}

void check_real(const std::string& at, const abi::OptionSpec& spec, Problems& problems) {
  // Written so that NaN fails too.
  if (!(spec.min_real <= spec.max_real)) {
    problems.add("{}.min_real is {}, max_real is {}; min must not be above max", at, spec.min_real, spec.max_real);
  } else if (!(spec.default_real >= spec.min_real && spec.default_real <= spec.max_real)) {
    problems.add("{}.default_real is {}, the range is {} to {}; give a default inside", at, spec.default_real,
                 spec.min_real, spec.max_real);
  }
}

void check_text(const std::string& at, const abi::OptionSpec& spec, Problems& problems) {
  if (spec.default_text == nullptr) {
    problems.add("{}.default_text is null, needed is a text; use \"\" for none", at);
    return;
  }
  if ((spec.choices == nullptr) != (spec.choice_count == 0) || spec.choice_count > kMaxOptions) {
    problems.add("{}.choices is {}, choice_count is {}; give both, or null and 0 for free text", at,
                 spec.choices == nullptr ? "null" : "an array", spec.choice_count);
    return;
  }
  std::vector<std::string> seen;
  for (std::uint32_t i = 0; i < spec.choice_count; ++i) {
    const std::string choice = spec.choices[i] == nullptr ? std::string() : bounded_text(spec.choices[i]);
    if (choice.empty() || std::find(seen.begin(), seen.end(), choice) != seen.end())
      problems.add("{}.choices[{}] is '{}', needed is a text that is not empty and not repeated", at, i, choice);
    seen.push_back(choice);
  }
  const std::string value = bounded_text(spec.default_text);
  if (!seen.empty() && std::find(seen.begin(), seen.end(), value) == seen.end())
    problems.add("{}.default_text is '{}', the choices are {}; name one of them", at, value, fmt::join(seen, ", "));
}

void check_value(const std::string& at, const abi::OptionSpec& spec, Problems& problems) {
  switch (spec.type) {
    case abi::OptionType::boolean:
      if (spec.default_integer != 0 && spec.default_integer != 1)
        problems.add("{}.default_integer is {}, a boolean has 0 or 1", at, spec.default_integer);
      return;
    case abi::OptionType::integer:
      check_integer(at, spec, problems);
      return;
    case abi::OptionType::real:
      check_real(at, spec, problems);
      return;
    case abi::OptionType::text:
      check_text(at, spec, problems);
      return;
  }
  problems.add("{}.type is {}, known are 1 to 4 (boolean, integer, real, text)", at,
               static_cast<std::uint32_t>(spec.type));
}

}  // namespace

bool is_snake_case(const std::string& text) {
  if (text.empty() || text.size() > 64 || text[0] < 'a' || text[0] > 'z') return false;
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_'; });
}

std::string bounded_text(const char* text) {
  return std::string(text, ::strnlen(text, kMaxText));
}

void check_schema(const abi::PluginDescriptor& descriptor, Problems& problems) {
  if (descriptor.option_count == 0) return;
  if (descriptor.options == nullptr || descriptor.option_count > kMaxOptions) {
    problems.add("options is {}, option_count is {}; an array of at most {} is needed",
                 descriptor.options == nullptr ? "null" : "an array", descriptor.option_count, kMaxOptions);
    return;
  }
  std::vector<std::string> names;
  for (std::uint32_t i = 0; i < descriptor.option_count; ++i) {
    const abi::OptionSpec& spec = descriptor.options[i];
    std::string at = fmt::format("options[{}]", i);
    if (spec.size != sizeof spec) {
      // Without the size the other members cannot be told, nor where the next element starts.
      problems.add("{}.size is {}, this program has {}; rebuild the plugin with its headers", at, spec.size,
                   sizeof spec);
      return;
    }
    const std::string name = spec.name == nullptr ? std::string() : bounded_text(spec.name);
    if (!is_snake_case(name))
      problems.add("{}.name is '{}', needed is snake_case of at most 64 characters", at, name);
    else
      at = fmt::format("option '{}'", name);
    if (std::find(names.begin(), names.end(), name) != names.end())
      problems.add("{}: the name appears twice; names are unique in a schema", at);
    names.push_back(name);
    if (spec.summary == nullptr || *spec.summary == '\0')
      problems.add("{}.summary is empty, needed is one line of text", at);
    if (spec.unit == nullptr) problems.add("{}.unit is null, needed is a text; use \"\" for none", at);
    check_value(at, spec, problems);
  }
}

}  // namespace facet
