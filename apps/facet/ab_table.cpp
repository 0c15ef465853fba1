// The comparison for people.
#include <cstdio>

#include "ab_report.h"

namespace facet::cli {
namespace {

std::string number(const Json& value, int digits) {
  return value.is_null() ? "-" : fmt::format("{:.{}f}", value.get<double>(), digits);
}

std::string mebibytes(const Json& value) {
  return fmt::format("{:.2f}", value.get<double>() / (1024.0 * 1024.0));
}

using Cells = std::vector<std::string>;

// First column to the left, the others to the right, each as wide as its widest cell; `words`: the last column to the
// left as well.
void print_aligned(const std::vector<Cells>& rows, bool words = false) {
  Cells::size_type columns = 0;
  for (const Cells& row : rows) columns = std::max(columns, row.size());
  std::vector<std::size_t> width(columns, 0);
  for (const Cells& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) width[i] = std::max(width[i], row[i].size());
  }
  for (const Cells& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) {
      const bool last_words = words && i + 1 == row.size();
      line += last_words ? "  " + row[i]
              : i == 0   ? fmt::format("  {:<{}}", row[i], width[i])
                         : fmt::format("  {:>{}}", row[i], width[i]);
    }
    fmt::print("{}\n", line);
  }
}

// "1 round", "5 rounds".
std::string counted(const Json& count, std::string_view what) {
  const auto number = count.get<std::int64_t>();
  return fmt::format("{} {}{}", number, what, number == 1 ? "" : "s");
}

void print_variants(const Json& document) {
  std::vector<Cells> rows(1, Cells{""});
  for (const Json& variant : document["variants"]) rows[0].push_back(variant["name"].get<std::string>());
  const auto add = [&](const std::string& label, const auto& cell) {
    Cells row{label};
    for (const Json& variant : document["variants"]) row.push_back(cell(variant));
    rows.push_back(std::move(row));
  };
  static constexpr const char* kMeasures[][2] = {{"ttft_ms", "first token, ms"},
                                                 {"itl_ms", "between tokens, ms"},
                                                 {"end_to_end_ms", "whole request, ms"},
                                                 {"tokens_per_second", "tokens/s"}};
  for (const auto& [key, label] : kMeasures) {
    for (const char* point : {"p50", "p90", "p99"}) {
      const char* name = key;
      add(fmt::format("{} {}", label, point), [name, point](const Json& variant) {
        return variant[name].is_null() ? std::string("-") : number(variant[name][point], 2);
      });
    }
  }
  static constexpr const char* kBytes[][2] = {{"weights", "weights, MiB"},
                                              {"weights_unpacked", "weights beside the file, MiB"},
                                              {"weights_mapped", "weights read in the file, MiB"},
                                              {"kv_pool", "KV pool, MiB"},
                                              {"kv_reserved_peak", "KV reserved at peak, MiB"},
                                              {"kv_used_peak", "KV used at peak, MiB"},
                                              {"workspace", "workspace, MiB"},
                                              {"activations", "activations, MiB"}};
  for (const auto& [key, label] : kBytes) {
    const char* name = key;
    add(label, [name](const Json& variant) { return mebibytes(variant["bytes"][name]); });
  }
  print_aligned(rows);
}

void print_plugins(const Json& document) {
  std::vector<Cells> rows{{"plugin", "variant", "calls", "seconds"}};
  for (const Json& variant : document["variants"]) {
    for (const Json& use : variant["plugins"]) {
      rows.push_back({fmt::format("{} {}", use["place"].get<std::string>(), use["name"].get<std::string>()),
                      variant["name"].get<std::string>(), fmt::format("{}", use["calls"].get<std::int64_t>()),
                      number(use["seconds"], 3)});
    }
  }
  print_aligned(rows);
}

std::string divergence_text(const Json& tokens) {
  std::string text;
  const Json& first = tokens["first_divergence"];
  for (std::size_t i = 0; i < first.size() && text.empty(); ++i) {
    if (!first[i].is_null())
      text = fmt::format("; request {} parts first, at token {}", i + 1, first[i].get<std::int64_t>() + 1);
  }
  return text;
}

void print_pair(const Json& pair) {
  const auto a = pair["a"].get<std::string>(), b = pair["b"].get<std::string>();
  fmt::print("\n{} against {}{}\n", b, a, pair["same_settings"].get<bool>() ? " (A/A: the same settings)" : "");
  for (const Json& entry : pair["differences"]) {
    fmt::print("  {}: {} -> {}\n", entry["key"].get<std::string>(), entry["a"].get<std::string>(),
               entry["b"].get<std::string>());
  }
  std::vector<Cells> rows{{"time ratio", "", "95 % interval", "verdict"}};
  static constexpr const char* kRatios[][2] = {
      {"round_time", "round"}, {"ttft", "first token"}, {"itl", "between tokens"}, {"end_to_end", "whole request"}};
  for (const auto& [key, label] : kRatios) {
    const Json& ratio = pair[key];
    if (ratio.is_null()) continue;
    rows.push_back(
        {label, number(ratio["ratio"], 4),
         ratio["low"].is_null() ? "-" : fmt::format("{} to {}", number(ratio["low"], 4), number(ratio["high"], 4)),
         fmt::format("{} {}", b, ratio["verdict"].get<std::string>())});
  }
  print_aligned(rows, true);
  const Json& tokens = pair["tokens"];
  fmt::print("  equal tokens {:.2f} % of {}{}\n", 100 * tokens["equal_share"].get<double>(),
             tokens["positions"].get<std::int64_t>(), divergence_text(tokens));
  if (!pair["mean_abs_nll_difference"].is_null())
    fmt::print("  mean |NLL difference| {:.2e}\n", pair["mean_abs_nll_difference"].get<double>());
}

}  // namespace

void print_ab(const Json& document) {
  std::string order;
  for (const Json& name : document["order"]) order += (order.empty() ? "" : " ") + name.get<std::string>();
  fmt::print("{}, {} after {} to warm up, in the order {}\n", counted(document["requests"], "request"),
             counted(document["rounds"], "round"), document["warmup_rounds"].get<std::int64_t>(), order);
  for (const Json& variant : document["variants"]) {
    const Json& shared = variant["shares_weights_with"];
    fmt::print("  {}: {}{}\n", variant["name"].get<std::string>(), variant["config_file"].get<std::string>(),
               shared.is_null() ? "" : fmt::format(" (weights shared with {})", shared.get<std::string>()));
  }
  fmt::print("\n");
  print_variants(document);
  fmt::print("\n");
  print_plugins(document);
  for (const Json& pair : document["pairs"]) print_pair(pair);
}

}  // namespace facet::cli
