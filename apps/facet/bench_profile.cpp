#include "bench_profile.h"

#include <cxxabi.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <memory>
#include <numeric>

namespace facet::cli {
namespace {

void erase_all(std::string& text, std::string_view what) {
  for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what)) text.erase(at, what.size());
}

// "void facet::linear::(anonymous namespace)::gemv<4>(Args)" becomes "linear::gemv<4>".
std::string readable(const std::string& mangled) {
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> text(::abi::__cxa_demangle(mangled.c_str(), nullptr, nullptr, &status),
                                                    std::free);
  std::string name = status == 0 ? text.get() : mangled;
  for (const char* noise : {"void ", "facet::", "(anonymous namespace)::"}) erase_all(name, noise);
  // Template arguments may hold parentheses, "(int)4": the list of parameters begins outside of < and >.
  int depth = 0;
  for (std::size_t i = 0; i < name.size(); ++i) {
    depth += name[i] == '<' ? 1 : name[i] == '>' ? -1 : 0;
    if (name[i] == '(' && depth == 0) {
      name.resize(i);
      break;
    }
  }
  return name;
}

struct Line {
  std::int64_t calls = 0;
  double us = 0;
};

}  // namespace

Json profile_json(const std::vector<KernelTime>& kernels, std::int64_t steps) {
  if (kernels.empty()) return nullptr;
  std::map<std::string, Line> lines;
  std::vector<double> gaps;
  std::uint64_t previous = kernels.front().start_ns;
  for (const KernelTime& kernel : kernels) {
    const std::uint64_t begin = std::max(previous, std::min(kernel.start_ns, kernel.end_ns));
    if (begin > previous) gaps.push_back(static_cast<double>(begin - previous) / 1e3);
    Line& line = lines[readable(kernel.name)];
    ++line.calls;
    line.us += static_cast<double>(kernel.end_ns - std::min(begin, kernel.end_ns)) / 1e3;
    previous = std::max(previous, kernel.end_ns);
  }
  // The longest gaps are those between the steps.
  std::sort(gaps.rbegin(), gaps.rend());
  const auto between = std::min(gaps.size(), static_cast<std::size_t>(steps - 1));
  const auto middle = gaps.begin() + static_cast<std::ptrdiff_t>(between);
  const auto count = static_cast<double>(steps);
  const double whole = static_cast<double>(previous - kernels.front().start_ns) / 1e3 / count;
  std::vector<std::pair<std::string, Line>> sorted(lines.begin(), lines.end());
  std::sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) { return a.second.us > b.second.us; });
  Json rows = Json::array();
  for (const auto& [name, line] : sorted) {
    rows.push_back({{"kernel", name},
                    {"calls", static_cast<double>(line.calls) / count},
                    {"us_each", line.us / static_cast<double>(line.calls)},
                    {"us_per_step", line.us / count},
                    {"share", line.us / count / whole}});
  }
  return {{"steps", steps},
          {"us_per_step", whole},
          {"us_between_steps",
           steps > 1 ? Json(std::accumulate(gaps.begin(), middle, 0.0) / static_cast<double>(steps - 1)) : Json()},
          {"us_idle_inside", std::accumulate(middle, gaps.end(), 0.0) / count},
          {"kernels", std::move(rows)}};
}

void print_profile(const char* title, const Json& profile) {
  if (profile.is_null()) return;
  fmt::print("\n  {}, {} step{} traced: {:.1f} us a step, of it {:.1f} us without a kernel inside", title,
             profile["steps"].get<std::int64_t>(), profile["steps"] == 1 ? "" : "s",
             profile["us_per_step"].get<double>(), profile["us_idle_inside"].get<double>());
  if (!profile["us_between_steps"].is_null())
    fmt::print(" and {:.1f} us between steps", profile["us_between_steps"].get<double>());
  fmt::print("\n  {:>10} {:>8} {:>9} {:>7}  kernel\n", "us a step", "calls", "us each", "share");
  for (const Json& row : profile["kernels"]) {
    fmt::print("  {:>10.1f} {:>8.1f} {:>9.2f} {:>6.1f}%  {}\n", row["us_per_step"].get<double>(),
               row["calls"].get<double>(), row["us_each"].get<double>(), 100 * row["share"].get<double>(),
               row["kernel"].get<std::string>());
  }
}

}  // namespace facet::cli
