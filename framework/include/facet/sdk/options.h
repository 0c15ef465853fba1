// Writing an option schema in one line an option, and reading the values by name.
#pragma once

#include <limits>
#include <string_view>

#include "facet/abi/options.h"
#include "facet/sdk/failure.h"

namespace facet::sdk {

constexpr abi::OptionSpec boolean_option(const char* name, bool value, const char* summary) {
  abi::OptionSpec spec{};
  spec.size = sizeof spec;
  spec.type = abi::OptionType::boolean;
  spec.name = name;
  spec.summary = summary;
  spec.unit = "";
  spec.default_integer = value ? 1 : 0;
  spec.max_integer = 1;
  spec.default_text = "";
  return spec;
}

constexpr abi::OptionSpec integer_option(const char* name, std::int64_t value, std::int64_t min, std::int64_t max,
                                         const char* unit, const char* summary) {
  abi::OptionSpec spec = boolean_option(name, false, summary);
  spec.type = abi::OptionType::integer;
  spec.unit = unit;
  spec.default_integer = value;
  spec.min_integer = min;
  spec.max_integer = max;
  return spec;
}

constexpr abi::OptionSpec real_option(const char* name, double value, double min, double max, const char* unit,
                                      const char* summary) {
  abi::OptionSpec spec = boolean_option(name, false, summary);
  spec.type = abi::OptionType::real;
  spec.unit = unit;
  spec.default_real = value;
  spec.min_real = min;
  spec.max_real = max;
  spec.max_integer = 0;
  return spec;
}

// choices must outlive the library: a static constexpr array.
template <std::size_t N>
constexpr abi::OptionSpec choice_option(const char* name, const char* value, const char* const (&choices)[N],
                                        const char* summary) {
  abi::OptionSpec spec = boolean_option(name, false, summary);
  spec.type = abi::OptionType::text;
  spec.max_integer = 0;
  spec.default_text = value;
  spec.choices = choices;
  spec.choice_count = N;
  return spec;
}

// Values of one instance, by name. Asking for a name outside the schema is a bug of the plugin and throws.
class OptionReader {
 public:
  OptionReader(const abi::OptionSpec* specs, std::uint32_t count, const abi::Options& values)
      : specs_(specs), count_(count), values_(values) {}

  bool boolean(std::string_view name) const { return find(name, abi::OptionType::boolean).integer != 0; }
  std::int64_t integer(std::string_view name) const { return find(name, abi::OptionType::integer).integer; }
  double real(std::string_view name) const { return find(name, abi::OptionType::real).real; }
  std::string_view text(std::string_view name) const { return find(name, abi::OptionType::text).text; }

 private:
  const abi::OptionValue& find(std::string_view name, abi::OptionType type) const {
    for (std::uint32_t i = 0; i < count_ && i < values_.count; ++i) {
      if (name == specs_[i].name && specs_[i].type == type) return values_.values[i];
    }
    fail(abi::Status::failed, "the plugin reads option '", name, "', which its schema does not have with that type");
  }

  const abi::OptionSpec* specs_;
  std::uint32_t count_;
  const abi::Options& values_;
};

}  // namespace facet::sdk
