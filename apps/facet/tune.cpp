#include "tune.h"

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <set>

#include "bench_report.h"
#include "facet/base/log.h"
#include "facet/base/text.h"
#include "quantize_weight.h"
#include "result_file.h"
#include "tune_module.h"

namespace facet::cli {
namespace {

std::vector<TunedPlugin> tuned_plugins(gemma4::Pipeline& pipeline) {
  const DeviceProfile& device = pipeline.shared()->profile();
  std::vector<TunedPlugin> plugins;
  for (const LinearRule& rule : pipeline.config().linear) {
    LinearRule all;
    all.choice = rule.choice;
    all.choice.fallback.clear();  // what it does not take, it does not take
    if (std::any_of(plugins.begin(), plugins.end(),
                    [&](const TunedPlugin& known) { return known.choice() == all.choice; }))
      continue;
    plugins.push_back({pipeline.config(), nullptr});
    plugins.back().config.linear = {all};
  }
  // Only now, as they hold on to where the configurations lie.
  for (TunedPlugin& plugin : plugins)
    plugin.assembler = std::make_unique<LinearAssembler>(plugin.config, pipeline.registry(), device.device(),
                                                         device.activation_type());
  return plugins;
}

// 1, 2, 4, ... and the largest.
std::vector<std::int64_t> row_counts(std::int64_t max_rows) {
  std::vector<std::int64_t> counts;
  for (std::int64_t rows = 1; rows < max_rows; rows *= 2) counts.push_back(rows);
  counts.push_back(max_rows);
  return counts;
}

// us of one row count: {"rows", "best", "plugins"}; a plugin that does not take it is not among them. `before`: the
// best one of fewer rows. It stays unless another one's median is below all that it took: noise makes no rule.
Json best_of(std::int64_t rows, Json plugins, const Json& before) {
  const auto median = [](const Json& plugin) { return plugin["us"]["median"].get<double>(); };
  const auto fastest = std::min_element(plugins.begin(), plugins.end(),
                                        [&](const Json& a, const Json& b) { return median(a) < median(b); });
  std::size_t best = static_cast<std::size_t>(fastest - plugins.begin());
  for (std::size_t i = 0; i < plugins.size() && !before.is_null(); ++i) {
    if (plugins[i]["index"] == before && plugins[i]["us"]["min"].get<double>() <= median(*fastest)) best = i;
  }
  return {{"rows", rows}, {"best", plugins[best]["index"]}, {"plugins", std::move(plugins)}};
}

// Minutes of measuring one plugin against nothing would end in a file that says what the configuration says.
void require_two(const std::vector<TunedPlugin>& plugins, const Config& config) {
  if (plugins.size() > 1) return;
  throw_error(
      ErrorKind::config,
      "{}: [linear] names one plugin only, '{}'; --tune has nothing to compare it with. Name the others that may "
      "serve in [[linear.rules]], whose row limits do not count here",
      config.file.string(), plugins.front().choice().plugin);
}

// Modules that only one plugin served: nothing was compared there.
void warn_unopposed(const Json& kind) {
  std::set<std::string> served;
  for (const Json& entry : kind["rows"]) {
    for (const Json& plugin : entry["plugins"]) served.insert(plugin["plugin"].get<std::string>());
  }
  if (served.size() > 1) return;
  log(LogLevel::warn, "--tune: {}: only {} of the configuration's plugins takes it; there was nothing to compare",
      kind["layers"].get<std::string>(), *served.begin());
}

class Tuner {
 public:
  Tuner(gemma4::Pipeline& pipeline, std::int64_t repeat)
      : pipeline_(pipeline),
        backend_(*pipeline.shared()->backend),
        repeat_(repeat),
        plugins_(tuned_plugins(pipeline)),
        buffers_(backend_, pipeline.plan().linear_specs()) {
    require_two(plugins_, pipeline.config());
  }

  // {"layers", "matrices", "rows": [...]}
  Json measure(const TunedKind& kind) {
    const gemma4::QuantizeWeight quantize = quantize_weight;
    const LoadWeight load = gemma4::weight_loader(pipeline_.plan().facts(), *pipeline_.shared()->source, quantize);
    WeightStore store(backend_);  // gone with this kind
    Json rows = Json::array();
    Json before;
    reasons_.clear();
    const std::vector<std::int64_t> counts = row_counts(kind.max_rows());
    for (std::size_t i = 0; i < counts.size(); ++i) {
      Json plugins = measure_rows(kind, counts[i], load, store);
      if (plugins.empty()) break;
      rows.push_back(best_of(counts[i], std::move(plugins), before));
      before = rows.back()["best"];
    }
    if (rows.size() < counts.size())
      throw_error(ErrorKind::run, "no plugin of the configuration serves {} rows of every {} alone:{}",
                  counts[rows.size()], kind.layers, reasons_);
    return {{"layers", kind.layers}, {"matrices", kind.specs.size()}, {"rows", std::move(rows)}};
  }

  // Rules of a kind that was measured.
  std::vector<LinearRule> rules(const Json& kind) const {
    std::vector<LinearRule> made;
    std::size_t index = plugins_.size();
    for (const Json& entry : kind["rows"]) {
      const auto best = entry["best"].get<std::size_t>();
      if (best != index) {
        LinearRule rule;
        rule.layers = kind["layers"].get<std::string>();
        // Between two counts that were measured, the plugin of the larger one serves: it takes fewer rows as well.
        if (!made.empty()) rule.min_rows = made.back().max_rows + 1;
        rule.choice = plugins_[best].choice();
        made.push_back(std::move(rule));
      }
      index = best;
      made.back().max_rows = entry["rows"].get<std::int64_t>();
    }
    made.back().max_rows = 0;
    return made;
  }

 private:
  Json measure_rows(const TunedKind& kind, std::int64_t rows, const LoadWeight& load, WeightStore& store) {
    struct Entrant {
      std::size_t plugin;
      std::unique_ptr<TuneArm> arm;
      std::vector<double> us;
    };
    std::vector<Entrant> entrants;
    for (std::size_t i = 0; i < plugins_.size(); ++i) {
      try {
        entrants.push_back({i, std::make_unique<TuneArm>(backend_, plugins_[i], kind, rows), {}});
      } catch (const Error& refusal) {
        if (refusal.kind() != ErrorKind::plugin) throw;
        if (rows == 1) reasons_ += "\n  " + refusal.message();
        continue;
      }
      entrants.back().arm->load(load, store);
      entrants.back().arm->warm_up(buffers_);
    }
    for (std::int64_t pass = 0; pass < repeat_; ++pass) {
      for (Entrant& entrant : entrants) entrant.us.push_back(entrant.arm->measure(buffers_));
      std::reverse(entrants.begin(), entrants.end());
    }
    std::sort(entrants.begin(), entrants.end(), [](const Entrant& a, const Entrant& b) { return a.plugin < b.plugin; });
    Json list = Json::array();
    for (const Entrant& entrant : entrants) {
      const TunedPlugin& plugin = plugins_[entrant.plugin];
      Json options = Json::object();
      for (const OptionEntry& option : plugin.choice().options)
        std::visit([&](const auto& value) { options[option.name] = value; }, option.value);
      list.push_back({{"index", entrant.plugin},
                      {"plugin", plugin.choice().plugin},
                      {"options", std::move(options)},
                      {"us", spread_json(entrant.us)}});
    }
    return list;
  }

  gemma4::Pipeline& pipeline_;
  Backend& backend_;
  std::int64_t repeat_;
  std::vector<TunedPlugin> plugins_;
  TuneBuffers buffers_;
  std::string reasons_;  // of plugins that take not even one row
};

std::string measured_line(const Json& entry) {
  std::string text = fmt::format("{:>6}", entry["rows"].get<std::int64_t>());
  for (const Json& plugin : entry["plugins"]) {
    const Json& us = plugin["us"];
    text += fmt::format("  {}{} {:.2f} ({:.2f} to {:.2f})", plugin["index"] == entry["best"] ? "*" : "",
                        plugin["plugin"].get<std::string>(), us["median"].get<double>(), us["min"].get<double>(),
                        us["max"].get<double>());
  }
  return text;
}

std::string quoted(const std::string& text) {
  return Json(text).dump();  // basic strings of TOML are those of JSON
}

constexpr std::string_view kFirstLine = "# Row thresholds of linear plugins, measured by 'facet bench --tune'.";

// Before minutes are spent: may it be written? Nothing but another tuning file is written over.
void require_writable(const std::filesystem::path& file) {
  check_result_file("--tune", file);
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(file, ignored)) return;
  std::ifstream before(file);
  std::string line;
  if (std::getline(before, line) && line != kFirstLine)
    throw_error(ErrorKind::usage, "--tune {}: exists and is no tuning file; name another", file.string());
}

}  // namespace

Json tune(gemma4::Pipeline& pipeline, const std::filesystem::path& file, std::int64_t repeat) {
  require_writable(file);
  const std::string device = pipeline.shared()->backend->description();
  Json document = {{"device", device}, {"file", file.string()}, {"modules", Json::array()}, {"rules", 0}};
  std::string text = fmt::format(
      "{}\n# One device was measured, and the rules are for no other. In a\n"
      "# configuration: tuning = \"THIS FILE\" in [linear]. Comments: rows, then us of one matrix by plugin, median "
      "of\n"
      "# {} (least to most), * the one that serves.\n",
      kFirstLine, repeat);
  Tuner tuner(pipeline, repeat);
  std::size_t rules = 0;
  for (const TunedKind& kind : tuned_kinds(pipeline.plan().linear_specs())) {
    say_phase(fmt::format("bench: {}, up to {} rows", kind.layers, kind.max_rows()));
    Json measured = tuner.measure(kind);
    warn_unopposed(measured);
    text += fmt::format("\n# {}, {} of them\n", kind.layers, kind.specs.size());
    for (const Json& entry : measured["rows"]) text += fmt::format("# {}\n", measured_line(entry));
    for (const LinearRule& rule : tuner.rules(measured)) {
      text += to_toml(pipeline.config(), rule);
      ++rules;
    }
    document["modules"].push_back(std::move(measured));
  }
  document["rules"] = rules;
  // At the end, so that a file that was cut anywhere lacks it.
  text += fmt::format(
      "\n[tuning]\ndevice = {}\nmodel = {}\nfacet_version = {}\nmax_step_tokens = {}\nrepeat = {}\nrules = {}\n",
      quoted(device), quoted(pipeline.shared()->source->description()), quoted(FACET_VERSION),
      pipeline.config().engine.max_step_tokens, repeat, rules);
  write_result_file("--tune", file, text);
  return document;
}

void print_tuning(const Json& document) {
  fmt::print("device {}\nus of one matrix, median (least to most); * serves\n", document["device"].get<std::string>());
  for (const Json& kind : document["modules"]) {
    fmt::print("{}\n", kind["layers"].get<std::string>());
    for (const Json& entry : kind["rows"]) fmt::print("{}\n", measured_line(entry));
  }
  fmt::print("{} rules written; use them with tuning = \"{}\" in [linear]\n", document["rules"].get<std::size_t>(),
             document["file"].get<std::string>());
}

}  // namespace facet::cli
