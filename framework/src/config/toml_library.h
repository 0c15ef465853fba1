// The only place that includes toml++, so that every unit of the reader sees it with the same settings.
#pragma once

#include <stdexcept>

namespace facet::config {

// The library met a state it thought impossible.
struct TomlInvariant : std::logic_error {
  using std::logic_error::logic_error;
};
[[noreturn]] inline void stop_parsing(const char* check) {
  throw TomlInvariant(check);
}

}  // namespace facet::config

#define TOML_ENABLE_FORMATTERS 0
#define TOML_ENABLE_WINDOWS_COMPAT 0
#include <toml++/impl/preprocessor.h>
// toml++ 3.3 asserts on some wrong files ("[[[" is one): a debug build would abort and a release build, where the
// assertion is an assumption for the optimiser, would have undefined behaviour. Its parser checks the same again and
// gives a proper error when the assumption is left out.
#undef TOML_ASSERT_ASSUME
#define TOML_ASSERT_ASSUME(expr) static_assert(true)
#undef TOML_ASSERT
#define TOML_ASSERT(expr) ((expr) ? void() : ::facet::config::stop_parsing(#expr))
#include <toml++/toml.h>
