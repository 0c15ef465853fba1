#include "ab_report.h"

#include <algorithm>

#include "facet/measure/equivalence.h"
#include "facet/measure/paired_ratio.h"
#include "facet/measure/percentiles.h"

namespace facet::cli {
namespace {

double end_to_end_ms(const RequestResult& result) {
  return static_cast<double>(result.finish_us - result.arrival_us) / 1000.0;
}

Json latencies_json(const AbVariant& variant) {
  std::vector<double> first, between, whole, rate;
  for (const AbRound& round : variant.rounds) {
    for (const RequestResult& result : round.results) {
      if (!result.token_us.empty()) first.push_back(result.ttft_ms());
      for (const double gap : result.inter_token_ms()) between.push_back(gap);
      whole.push_back(end_to_end_ms(result));
    }
    if (round.seconds > 0) rate.push_back(static_cast<double>(round.generated) / round.seconds);
  }
  return {{"ttft_ms", percentiles_json(std::move(first))},
          {"itl_ms", percentiles_json(std::move(between))},
          {"end_to_end_ms", percentiles_json(std::move(whole))},
          {"tokens_per_second", percentiles_json(std::move(rate))}};
}

Json bytes_json(const AbVariant& variant) {
  std::uint64_t reserved = 0, used = 0;
  for (const AbRound& round : variant.rounds) {
    reserved = std::max(reserved, round.metrics.peak_kv_reserved);
    used = std::max(used, round.metrics.peak_kv_used);
  }
  const MemoryPlan plan = variant.pipeline->memory();
  return {{"weights", plan.weights},
          {"weights_unpacked", plan.weights_unpacked},
          {"weights_mapped", plan.weights_mapped},
          {"kv_pool", plan.kv()},
          {"kv_reserved_peak", reserved},
          {"kv_used_peak", used},
          {"workspace", plan.workspace},
          {"activations", plan.activations}};
}

Json variant_json(const AbVariant& variant) {
  Json json = {{"name", variant.name},
               {"config_file", variant.pipeline->config().file.string()},
               {"shares_weights_with", variant.shares_with.empty() ? Json(nullptr) : Json(variant.shares_with)}};
  json.update(latencies_json(variant));
  Json seconds = Json::array();
  Equivalence repeat;
  std::int64_t cached = 0, preemptions = 0, steps = 0;
  for (std::size_t i = 0; i < variant.rounds.size(); ++i) {
    const AbRound& round = variant.rounds[i];
    seconds.push_back(round.seconds);
    cached += round.metrics.cached_tokens;
    preemptions += round.metrics.preemptions;
    steps += round.metrics.steps;
    add_outputs(variant.outputs(0), variant.outputs(i), repeat);
  }
  json["round_seconds"] = std::move(seconds);
  json["generated_tokens"] = variant.rounds.front().generated;
  json["steps"] = steps;
  json["cached_tokens"] = cached;
  json["preemptions"] = preemptions;
  json["tokens_equal_to_own_first_round"] = repeat.share();
  json["bytes"] = bytes_json(variant);
  json["plugins"] = plugin_use_json(variant.uses);
  json["record"] = run_record(*variant.pipeline);
  return json;
}

Json ratio_json(const std::vector<std::vector<double>>& rounds) {
  const PairedRatio ratio = paired_ratio(rounds);
  if (ratio.pairs == 0) return nullptr;
  return {{"ratio", ratio.ratio},
          {"low", ratio.has_interval ? Json(ratio.low) : Json(nullptr)},
          {"high", ratio.has_interval ? Json(ratio.high) : Json(nullptr)},
          {"rounds", ratio.rounds},
          {"pairs", ratio.pairs},
          {"verdict", to_string(verdict(ratio))}};
}

// Ratios of `value` of the same request in the same round; requests without a positive value on both sides are left
// out.
template <typename Value>
Json request_ratios(const AbVariant& a, const AbVariant& b, Value value) {
  std::vector<std::vector<double>> rounds;
  for (std::size_t round = 0; round < a.rounds.size(); ++round) {
    std::vector<double> ratios;
    for (std::size_t i = 0; i < a.rounds[round].results.size(); ++i) {
      const double left = value(a.rounds[round].results[i]), right = value(b.rounds[round].results[i]);
      if (left > 0 && right > 0) ratios.push_back(right / left);
    }
    rounds.push_back(std::move(ratios));
  }
  return ratio_json(rounds);
}

Json round_ratios(const AbVariant& a, const AbVariant& b) {
  std::vector<std::vector<double>> rounds;
  for (std::size_t round = 0; round < a.rounds.size(); ++round) {
    if (a.rounds[round].seconds > 0 && b.rounds[round].seconds > 0)
      rounds.push_back({b.rounds[round].seconds / a.rounds[round].seconds});
  }
  return ratio_json(rounds);
}

Json tokens_json(const AbVariant& a, const AbVariant& b) {
  Equivalence tokens;
  for (std::size_t round = 0; round < a.rounds.size(); ++round) add_outputs(a.outputs(round), b.outputs(round), tokens);
  Json first = Json::array();
  for (const std::int64_t place : tokens.first_divergence) first.push_back(place < 0 ? Json(nullptr) : Json(place));
  return {{"equal_share", tokens.share()},
          {"positions", tokens.positions},
          {"requests_equal", tokens.requests_equal},
          {"first_divergence", std::move(first)}};
}

Json nll_difference(const AbVariant& a, const AbVariant& b) {
  std::vector<double> left, right;
  for (const std::vector<double>& values : a.nll) left.insert(left.end(), values.begin(), values.end());
  for (const std::vector<double>& values : b.nll) right.insert(right.end(), values.begin(), values.end());
  if (left.empty() || left.size() != right.size()) return nullptr;
  return mean_absolute_difference(left, right);
}

Json pair_json(const AbVariant& a, const AbVariant& b) {
  Json settings = Json::array(), switched = Json::array();
  for (const AbDifference& entry : differences(a, b))
    settings.push_back({{"key", entry.key}, {"a", entry.a}, {"b", entry.b}});
  for (const AbSwitch& entry : switches(a, b)) {
    switched.push_back({{"variant", entry.variant},
                        {"place", entry.place},
                        {"plugin", entry.plugin},
                        {"options", entry.options},
                        {"where", entry.where},
                        {"calls", entry.calls}});
  }
  const auto typical_gap = [](const RequestResult& result) { return median(result.inter_token_ms()); };
  const bool same = settings.empty();
  return {{"a", a.name},
          {"b", b.name},
          {"same_settings", same},
          {"differences", std::move(settings)},
          {"switched", std::move(switched)},
          {"round_time", round_ratios(a, b)},
          {"ttft", request_ratios(a, b, [](const RequestResult& result) { return result.ttft_ms(); })},
          {"itl", request_ratios(a, b, typical_gap)},
          {"end_to_end", request_ratios(a, b, end_to_end_ms)},
          {"tokens", tokens_json(a, b)},
          {"mean_abs_nll_difference", nll_difference(a, b)}};
}

}  // namespace

Json ab_json(const std::vector<AbVariant>& variants, const std::vector<std::size_t>& order, const AbOptions& options) {
  Json document = {{"requests", variants.front().requests.size()},
                   {"rounds", options.rounds},
                   {"warmup_rounds", options.warmup},
                   {"order", Json::array()},
                   {"reuse_across_rounds", false},
                   {"variants", Json::array()},
                   {"pairs", Json::array()}};
  for (const std::size_t index : order) document["order"].push_back(variants[index].name);
  for (const AbVariant& variant : variants) document["variants"].push_back(variant_json(variant));
  for (std::size_t i = 0; i < variants.size(); ++i) {
    for (std::size_t j = i + 1; j < variants.size(); ++j)
      document["pairs"].push_back(pair_json(variants[i], variants[j]));
  }
  return document;
}

}  // namespace facet::cli
