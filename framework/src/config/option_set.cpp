#include <algorithm>
#include <cmath>
#include <span>

#include "config/report.h"
#include "facet/base/text.h"
#include "facet/config/options.h"

namespace facet {
namespace {

using abi::OptionSpec;
using abi::OptionType;

std::span<const OptionSpec> specs_of(const abi::PluginDescriptor& descriptor) {
  return {descriptor.options, descriptor.option_count};
}

std::string data_text(const OptionData& data) {
  if (const auto* boolean = std::get_if<bool>(&data)) return fmt::format("the boolean {}", *boolean);
  if (const auto* integer = std::get_if<std::int64_t>(&data)) return fmt::format("the integer {}", *integer);
  if (const auto* real = std::get_if<double>(&data)) return fmt::format("the real number {}", *real);
  return "the string " + config::in_quotes(std::get<std::string>(data));
}

std::string with_unit(const OptionSpec& spec) {
  return *spec.unit != '\0' ? fmt::format(" ({})", spec.unit) : std::string();
}

// Each check gives what is wrong, or "" after it has stored the value.
std::string take_integer(const OptionSpec& spec, const OptionData& data, abi::OptionValue& value) {
  const auto* integer = std::get_if<std::int64_t>(&data);
  if (integer == nullptr) return fmt::format("must be an integer{}, found {}", with_unit(spec), data_text(data));
  if (*integer < spec.min_integer || *integer > spec.max_integer) {
    return fmt::format("must be {} to {}{}, found {}", spec.min_integer, spec.max_integer, with_unit(spec), *integer);
  }
  value.integer = *integer;
  return "";
}

std::string take_real(const OptionSpec& spec, const OptionData& data, abi::OptionValue& value) {
  double real = 0;
  if (const auto* integer = std::get_if<std::int64_t>(&data)) {
    real = static_cast<double>(*integer);
  } else if (const auto* number = std::get_if<double>(&data)) {
    real = *number;
  } else {
    return fmt::format("must be a number{}, found {}", with_unit(spec), data_text(data));
  }
  // Written so that nan is refused too.
  if (!(real >= spec.min_real && real <= spec.max_real)) {
    return fmt::format("must be {} to {}{}, found {}", spec.min_real, spec.max_real, with_unit(spec), real);
  }
  value.real = real;
  return "";
}

std::string take_boolean(const OptionData& data, abi::OptionValue& value) {
  const auto* boolean = std::get_if<bool>(&data);
  if (boolean == nullptr) return fmt::format("must be true or false, found {}", data_text(data));
  value.integer = *boolean ? 1 : 0;
  return "";
}

std::string take_text(const OptionSpec& spec, const OptionData& data, std::string& owned) {
  const auto* text = std::get_if<std::string>(&data);
  if (text == nullptr) return fmt::format("must be a string, found {}", data_text(data));
  if (text->find('\0') != std::string::npos) return "must not hold a NUL character";
  if (spec.choices != nullptr) {
    const std::vector<std::string> choices(spec.choices, spec.choices + spec.choice_count);
    if (std::find(choices.begin(), choices.end(), *text) == choices.end()) {
      const std::string near = nearest_name(config::folded(*text), choices);
      return fmt::format("must be one of {}, found {}{}", config::joined(choices), config::in_quotes(*text),
                         near.empty() ? "" : fmt::format("; did you mean '{}'?", near));
    }
  }
  owned = *text;
  return "";
}

std::string unknown_text(const abi::PluginDescriptor& descriptor, const std::string& name) {
  std::vector<std::string> names;
  for (const OptionSpec& spec : specs_of(descriptor)) names.emplace_back(spec.name);
  std::string text =
      fmt::format("unknown option {} of plugin '{}' {}", config::in_quotes(name), descriptor.name, descriptor.version);
  if (names.empty()) return text + ", which has no options; remove it";
  const std::string fold = config::folded(name);
  const bool same = std::find(names.begin(), names.end(), fold) != names.end();
  const std::string near = same ? fold : nearest_name(fold, names);
  if (!near.empty()) text += fmt::format("; did you mean '{}'?", near);
  return text + (near.empty() ? "; its options: " : " Its options: ") + config::joined(names);
}

OptionData data_of(const OptionSpec& spec, const abi::OptionValue& value) {
  switch (spec.type) {
    case OptionType::boolean:
      return value.integer != 0;
    case OptionType::integer:
      return value.integer;
    case OptionType::real:
      return value.real;
    case OptionType::text:
      break;
  }
  return std::string(value.text);
}

}  // namespace

OptionSet::OptionSet(const abi::PluginDescriptor& descriptor) : descriptor_(&descriptor) {
  for (const OptionSpec& spec : specs_of(descriptor)) {
    texts_.push_back(std::make_unique<std::string>(spec.default_text == nullptr ? "" : spec.default_text));
    abi::OptionValue value{};
    value.size = sizeof value;
    value.type = spec.type;
    value.integer = spec.default_integer;
    value.real = spec.default_real;
    value.text = texts_.back()->c_str();
    values_.push_back(value);
  }
}

abi::Options OptionSet::view() const {
  abi::Options options{};
  options.size = sizeof options;
  options.count = static_cast<std::uint32_t>(values_.size());
  options.values = values_.data();
  return options;
}

std::string OptionSet::to_string() const {
  std::string text;
  for (const OptionEntry& entry : entries()) {
    if (!text.empty()) text += ' ';
    text += entry.name + '=';
    std::visit([&text](const auto& value) { text += fmt::format("{}", value); }, entry.value);
  }
  return text;
}

std::vector<OptionEntry> OptionSet::entries() const {
  std::vector<OptionEntry> result;
  const auto specs = specs_of(*descriptor_);
  for (std::size_t i = 0; i < specs.size(); ++i) {
    result.push_back({specs[i].name, data_of(specs[i], values_[i]), 0, specs[i].name});
  }
  return result;
}

OptionSet resolve_options(const abi::PluginDescriptor& descriptor, const PluginChoice& choice, const std::string& file,
                          Problems& problems) {
  OptionSet set(descriptor);
  const auto specs = specs_of(descriptor);
  std::vector<bool> given(specs.size(), false);
  for (const OptionEntry& entry : choice.options) {
    const auto spec = std::find_if(specs.begin(), specs.end(),
                                   [&entry](const OptionSpec& other) { return entry.name == other.name; });
    std::string mistake;
    if (spec == specs.end()) {
      mistake = unknown_text(descriptor, entry.name);
    } else {
      const auto index = static_cast<std::size_t>(spec - specs.begin());
      abi::OptionValue& value = set.values_[index];
      if (given[index]) {
        mistake = "given twice; keep one";
      } else if (spec->type == OptionType::boolean) {
        mistake = take_boolean(entry.value, value);
      } else if (spec->type == OptionType::integer) {
        mistake = take_integer(*spec, entry.value, value);
      } else if (spec->type == OptionType::real) {
        mistake = take_real(*spec, entry.value, value);
      } else {
        mistake = take_text(*spec, entry.value, *set.texts_[index]);
        value.text = set.texts_[index]->c_str();
      }
      given[index] = true;
      if (!mistake.empty())
        mistake = fmt::format("option of plugin '{}' {} {}", descriptor.name, descriptor.version, mistake);
    }
    if (!mistake.empty()) problems.add("{}{}", config::place(file, entry.line, entry.key_path), mistake);
  }
  return set;
}

}  // namespace facet
