// What a plugin can be told: the schema it publishes and the typed values it receives.
#pragma once

#include "facet/abi/types.h"

namespace facet::abi {

enum class OptionType : std::uint32_t { boolean = 1, integer = 2, real = 3, text = 4 };

// One option of a plugin. Texts end in NUL and live as long as the library.
// The host reads the TOML, rejects unknown names, checks type, range and choices, and fills in defaults.
struct OptionSpec {
  std::uint32_t size;
  OptionType type;
  const char* name;              // snake_case, the TOML key
  const char* summary;           // one line
  const char* unit;              // "" when it has none
  std::int64_t default_integer;  // also the boolean default: 0 or 1
  std::int64_t min_integer;      // inclusive
  std::int64_t max_integer;      // inclusive
  double default_real;
  double min_real;             // inclusive
  double max_real;             // inclusive
  const char* default_text;    // "" when empty; one of choices when there are any
  const char* const* choices;  // null: free text
  std::uint32_t choice_count;
};

// The value of the option with the same index in the schema. Only the member named by type is meaningful.
struct OptionValue {
  std::uint32_t size;
  OptionType type;
  std::int64_t integer;  // boolean: 0 or 1
  double real;
  const char* text;  // ends in NUL, lives until create() returns
};

// values[i] belongs to the descriptor's options[i]; count equals the descriptor's option_count.
struct Options {
  std::uint32_t size;
  std::uint32_t count;
  const OptionValue* values;
};

}  // namespace facet::abi
