// Any bytes give a configuration or an Error, nothing else; what is accepted survives being written and read again.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "facet/base/error.h"
#include "facet/config/config.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  facet::Config config;
  try {
    config = facet::parse_config(text, "fuzz.toml", "/base");
  } catch (const facet::Error& error) {
    return error.kind() == facet::ErrorKind::config ? 0 : (std::abort(), 1);
  }
  if (!(facet::parse_config(facet::to_toml(config), "again.toml", "/other") == config)) {
    std::fprintf(stderr, "not equal after writing and reading:\n%.*s\n", static_cast<int>(size), text.data());
    std::abort();
  }
  return 0;
}
