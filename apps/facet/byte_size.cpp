#include "byte_size.h"

#include <charconv>
#include <cmath>

#include "facet/base/error.h"

namespace facet::cli {
namespace {

struct Unit {
  const char* name;
  double bytes;
};
constexpr double kBinary = 1024.0, kDecimal = 1000.0;
constexpr Unit kUnits[] = {{"", 1.0},
                           {"B", 1.0},
                           {"KiB", kBinary},
                           {"MiB", kBinary* kBinary},
                           {"GiB", kBinary* kBinary* kBinary},
                           {"TiB", kBinary* kBinary* kBinary* kBinary},
                           {"KB", kDecimal},
                           {"MB", kDecimal* kDecimal},
                           {"GB", kDecimal* kDecimal* kDecimal},
                           {"TB", kDecimal* kDecimal* kDecimal* kDecimal}};

}  // namespace

std::uint64_t parse_byte_size(const std::string& text, const std::string& option) {
  double number = 0;
  const char* begin = text.data();
  const char* end = begin + text.size();
  const auto [after, error] = std::from_chars(begin, end, number, std::chars_format::fixed);
  const char* unit_begin = after;
  while (unit_begin < end && *unit_begin == ' ') ++unit_begin;
  const std::string unit_name(unit_begin, end);
  // Whole bytes above this would not be exact in a double, and no machine has them.
  constexpr double kMost = 9007199254740992.0;
  for (const Unit& unit : kUnits) {
    if (error == std::errc::invalid_argument || unit_name != unit.name) continue;
    const double bytes = std::floor(number * unit.bytes);
    if (error == std::errc::result_out_of_range || bytes > kMost)
      throw_error(ErrorKind::usage, "{}: '{}' is too large; at most {:.0f} bytes (8192 TiB) can be asked for", option,
                  text, kMost);
    if (bytes >= 1.0) return static_cast<std::uint64_t>(bytes);
  }
  throw_error(ErrorKind::usage,
              "{}: '{}' is not a size; write a number above 0 with B, KiB, MiB, GiB, TiB, KB, MB, GB "
              "or TB, e.g. 10GiB",
              option, text);
}

}  // namespace facet::cli
