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

// Times of the kernels, and the pauses between them.
struct Times {
  std::vector<double> kernel_us;
  std::vector<double> gaps;  // the longest first
  double whole_us = 0;
};

Times times_of(const std::vector<KernelTime>& kernels) {
  Times times;
  std::uint64_t previous = kernels.front().start_ns;
  for (const KernelTime& kernel : kernels) {
    const std::uint64_t begin = std::max(previous, std::min(kernel.start_ns, kernel.end_ns));
    if (begin > previous) times.gaps.push_back(static_cast<double>(begin - previous) / 1e3);
    times.kernel_us.push_back(static_cast<double>(kernel.end_ns - std::min(begin, kernel.end_ns)) / 1e3);
    previous = std::max(previous, kernel.end_ns);
  }
  std::sort(times.gaps.rbegin(), times.gaps.rend());
  times.whole_us = static_cast<double>(previous - kernels.front().start_ns) / 1e3;
  return times;
}

Json part_json(const char* name, double us, double whole) {
  return {{"part", name}, {"us_per_step", us}, {"share", us / whole}};
}

Json parts_json(const std::vector<KernelTime>& kernels, const Times& times, double steps,
                const std::vector<gemma4::PartCost>& costs, const DeviceRates& rates) {
  std::vector<double> us(costs.size() + 1);  // the last: what belongs to none
  for (std::size_t i = 0; i < kernels.size(); ++i) {
    const auto part = static_cast<std::size_t>(kernels[i].part);
    us[std::min(kernels[i].part < 0 ? costs.size() : part, costs.size())] += times.kernel_us[i] / steps;
  }
  if (std::all_of(us.begin(), us.end() - 1, [](double time) { return time == 0; })) return nullptr;
  Json rows = Json::array();
  for (std::size_t i = 0; i < costs.size(); ++i) {
    if (us[i] == 0) continue;
    Json row = part_json(gemma4::part_name(static_cast<gemma4::StepPart>(i)), us[i], times.whole_us / steps);
    row["mb"] = costs[i].bytes / 1e6;
    row["gflop"] = costs[i].operations / 1e9;
    row["gb_per_s"] = costs[i].bytes / us[i] / 1e3;
    row["tflop_per_s"] = costs[i].operations / us[i] / 1e6;
    const bool known = rates.bytes > 0 && rates.operations > 0;
    const double floor =
        known ? 1e6 * std::max(costs[i].bytes / rates.bytes, costs[i].operations / rates.operations) : 0;
    row["floor_us"] = known ? Json(floor) : Json();
    row["share_of_floor"] = known ? Json(floor / us[i]) : Json();
    rows.push_back(std::move(row));
  }
  if (us.back() > 0) rows.push_back(part_json("other kernels", us.back(), times.whole_us / steps));
  return rows;
}

Json kernels_json(const std::vector<KernelTime>& kernels, const Times& times, double steps) {
  std::map<std::string, Line> lines;
  for (std::size_t i = 0; i < kernels.size(); ++i) {
    Line& line = lines[readable(kernels[i].name)];
    ++line.calls;
    line.us += times.kernel_us[i];
  }
  std::vector<std::pair<std::string, Line>> sorted(lines.begin(), lines.end());
  std::sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) { return a.second.us > b.second.us; });
  Json rows = Json::array();
  for (const auto& [name, line] : sorted) {
    rows.push_back({{"kernel", name},
                    {"calls", static_cast<double>(line.calls) / steps},
                    {"us_each", line.us / static_cast<double>(line.calls)},
                    {"us_per_step", line.us / steps},
                    {"share", line.us / times.whole_us}});
  }
  return rows;
}

void print_parts(const Json& parts) {
  if (parts.is_null()) return;
  fmt::print("  {:>10} {:>7} {:>9} {:>9} {:>8} {:>8} {:>9} {:>6}  part\n", "us a step", "share", "MB", "GFLOP", "GB/s",
             "TFLOP/s", "floor us", "of it");
  for (const Json& row : parts) {
    fmt::print("  {:>10.1f} {:>6.1f}%", row["us_per_step"].get<double>(), 100 * row["share"].get<double>());
    if (row.contains("mb")) {
      fmt::print(" {:>9.1f} {:>9.1f} {:>8.0f} {:>8.1f}", row["mb"].get<double>(), row["gflop"].get<double>(),
                 row["gb_per_s"].get<double>(), row["tflop_per_s"].get<double>());
      if (row["floor_us"].is_null()) {
        fmt::print(" {:>9} {:>6}", "-", "-");
      } else {
        fmt::print(" {:>9.1f} {:>5.1f}%", row["floor_us"].get<double>(), 100 * row["share_of_floor"].get<double>());
      }
    } else {
      fmt::print(" {:>9} {:>9} {:>8} {:>8} {:>9} {:>6}", "", "", "", "", "", "");
    }
    fmt::print("  {}\n", row["part"].get<std::string>());
  }
}

}  // namespace

Json profile_json(const std::vector<KernelTime>& kernels, std::int64_t steps,
                  const std::vector<gemma4::PartCost>& costs, const DeviceRates& rates) {
  if (kernels.empty()) return nullptr;
  const Times times = times_of(kernels);
  // The longest gaps are those between the steps.
  const auto between = std::min(times.gaps.size(), static_cast<std::size_t>(steps - 1));
  const auto middle = times.gaps.begin() + static_cast<std::ptrdiff_t>(between);
  const auto count = static_cast<double>(steps);
  return {
      {"steps", steps},
      {"us_per_step", times.whole_us / count},
      {"us_between_steps",
       steps > 1 ? Json(std::accumulate(times.gaps.begin(), middle, 0.0) / static_cast<double>(steps - 1)) : Json()},
      {"us_idle_inside", std::accumulate(middle, times.gaps.end(), 0.0) / count},
      {"parts", parts_json(kernels, times, count, costs, rates)},
      {"kernels", kernels_json(kernels, times, count)}};
}

void print_profile(const char* title, const Json& profile) {
  if (profile.is_null()) return;
  fmt::print("\n  {}, {} step{} traced: {:.1f} us a step, of it {:.1f} us without a kernel inside", title,
             profile["steps"].get<std::int64_t>(), profile["steps"] == 1 ? "" : "s",
             profile["us_per_step"].get<double>(), profile["us_idle_inside"].get<double>());
  if (!profile["us_between_steps"].is_null())
    fmt::print(" and {:.1f} us between steps", profile["us_between_steps"].get<double>());
  fmt::print("\n");
  print_parts(profile["parts"]);
  fmt::print("  {:>10} {:>8} {:>9} {:>7}  kernel\n", "us a step", "calls", "us each", "share");
  for (const Json& row : profile["kernels"]) {
    fmt::print("  {:>10.1f} {:>8.1f} {:>9.2f} {:>6.1f}%  {}\n", row["us_per_step"].get<double>(),
               row["calls"].get<double>(), row["us_each"].get<double>(), 100 * row["share"].get<double>(),
               row["kernel"].get<std::string>());
  }
}

}  // namespace facet::cli
