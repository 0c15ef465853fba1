#include "ab_rounds.h"

#include <algorithm>

#include "memory_limit.h"
#include "request_file.h"

namespace facet::cli {
namespace {

// Requests whose sampling has no seed get one, so that all variants draw the same numbers.
void read_ab_requests(const AbOptions& options, AbVariant& variant) {
  Request defaults;
  defaults.max_tokens = options.max_tokens;
  if (!options.ignore_eos) defaults.stop_ids = variant.pipeline->stop_ids();
  variant.requests = read_requests(options.requests, *variant.pipeline, defaults, options.chat, &variant.places);
  for (std::size_t i = 0; i < variant.requests.size(); ++i) {
    std::optional<std::uint64_t>& seed = variant.requests[i].sampling.seed;
    if (!seed) seed = i;
  }
}

void check_same_prompts(const AbVariant& a, const AbVariant& b, const std::string& file) {
  for (std::size_t i = 0; i < a.requests.size(); ++i) {
    if (a.requests[i].prompt == b.requests[i].prompt) continue;
    throw_error(
        ErrorKind::usage,
        "{}: request {} of {} has {} tokens in variant {} and other {} in variant {}; variants whose tokenizers "
        "differ can only be compared with prompt_ids",
        file, i + 1, a.requests.size(), a.requests[i].prompt.size(), a.name, b.requests[i].prompt.size(), b.name);
  }
}

std::vector<RequestResult> run_all(AbVariant& variant, Engine& engine, const std::vector<Request>& requests,
                                   std::uint64_t salt) {
  engine.restart_clock();
  for (std::size_t i = 0; i < requests.size(); ++i) {
    Request request = requests[i];
    request.salt = salt;
    try {
      engine.submit(std::move(request));
    } catch (Error& error) {
      error.add_context(fmt::format("in request {} of {} ({}), variant {} ({})", i + 1, requests.size(),
                                    variant.places[i], variant.name, variant.pipeline->config().file.string()));
      throw;
    }
  }
  engine.run();
  std::vector<RequestResult> results = engine.take_finished();
  std::sort(results.begin(), results.end(), [](const RequestResult& a, const RequestResult& b) { return a.id < b.id; });
  for (std::size_t i = 0; i < results.size(); ++i) {
    if (results[i].finish_reason == FinishReason::error) {
      throw_error(ErrorKind::run, "variant {}: request {} ({}) failed: {}", variant.name, i + 1, variant.places[i],
                  results[i].error);
    }
  }
  return results;
}

AbRound run_round(AbVariant& variant, std::uint64_t salt) {
  const auto engine = variant.pipeline->make_engine();
  AbRound round;
  round.results = run_all(variant, *engine, variant.requests, salt);
  for (const RequestResult& result : round.results) {
    round.seconds = std::max(round.seconds, static_cast<double>(result.finish_us) / 1e6);
    round.generated += static_cast<std::int64_t>(result.ids.size());
  }
  round.metrics = engine->metrics();
  return round;
}

// Every variant scores the same tokens: the prompts and what the first variant generated, token by token as when it was
// generated.
void score_outputs(std::vector<AbVariant>& variants, std::uint64_t salt) {
  const std::vector<std::vector<std::int32_t>> outputs = variants.front().outputs(0);
  for (AbVariant& variant : variants) {
    std::vector<Request> requests = variant.requests;
    for (std::size_t i = 0; i < requests.size(); ++i) {
      requests[i].score = true;
      requests[i].forced = outputs[i];
      requests[i].max_tokens = static_cast<std::int64_t>(outputs[i].size());
      requests[i].stop_ids.clear();
      requests[i].arrival_us = 0;
    }
    const auto engine = variant.pipeline->make_engine();
    for (RequestResult& result : run_all(variant, *engine, requests, salt))
      variant.nll.push_back(std::move(result.nll));
  }
}

void subtract_calls(const std::vector<PluginUse>& before, std::vector<PluginUse>& uses) {
  for (std::size_t i = 0; i < uses.size(); ++i) {
    uses[i].calls -= before[i].calls;
    uses[i].nanoseconds -= before[i].nanoseconds;
  }
}

}  // namespace

std::vector<std::vector<std::int32_t>> AbVariant::outputs(std::size_t round) const {
  std::vector<std::vector<std::int32_t>> ids;
  for (const RequestResult& result : rounds[round].results) ids.push_back(result.ids);
  return ids;
}

std::vector<AbVariant> plan_variants(const AbOptions& options, const GlobalOptions& global) {
  std::vector<AbVariant> variants;
  for (const std::string& file : options.configs) {
    const Config config = load_config(file);
    AbVariant variant;
    variant.name = std::string(1, static_cast<char>('A' + variants.size()));
    std::shared_ptr<gemma4::SharedParts> shared;
    for (const AbVariant& earlier : variants) {
      if (!earlier.pipeline->can_share(config)) continue;
      variant.shares_with = earlier.name;
      shared = earlier.pipeline->shared();
      break;
    }
    variant.pipeline = open_pipeline(file, global, false, std::move(shared));
    check_memory_limit(*variant.pipeline, global);
    variants.push_back(std::move(variant));
  }
  for (AbVariant& variant : variants) {
    read_ab_requests(options, variant);
    check_same_prompts(variants.front(), variant, options.requests);
  }
  return variants;
}

std::vector<std::size_t> round_order(std::size_t variants, std::size_t round) {
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < variants; ++i) order.push_back((i + round / 2) % variants);
  if (round % 2 == 1) std::reverse(order.begin(), order.end());
  return order;
}

std::vector<std::size_t> measure_variants(std::vector<AbVariant>& variants, const AbOptions& options,
                                          const GlobalOptions& global) {
  for (AbVariant& variant : variants) {
    load_weights(*variant.pipeline, global, "loading weights of " + variant.name);
  }
  const auto total = static_cast<std::size_t>(options.warmup + options.rounds) * variants.size();
  std::size_t done = 0;
  Progress progress("runs");
  // A salt of its own for each round: nothing is reused from one round to the next, reuse inside a round goes on.
  std::uint64_t salt = 1;
  for (std::int64_t round = 0; round < options.warmup; ++round, ++salt) {
    for (AbVariant& variant : variants) {
      progress.update(++done, total);
      run_round(variant, salt);
    }
  }
  std::vector<std::vector<PluginUse>> before;
  before.reserve(variants.size());
  for (const AbVariant& variant : variants) before.push_back(variant.pipeline->plugin_use());
  std::vector<std::size_t> order;
  for (std::int64_t round = 0; round < options.rounds; ++round, ++salt) {
    for (const std::size_t index : round_order(variants.size(), static_cast<std::size_t>(round))) {
      progress.update(++done, total);
      variants[index].rounds.push_back(run_round(variants[index], salt));
      order.push_back(index);
    }
  }
  for (std::size_t i = 0; i < variants.size(); ++i) {
    variants[i].uses = variants[i].pipeline->plugin_use();
    subtract_calls(before[i], variants[i].uses);
  }
  if (!options.skip_nll) score_outputs(variants, salt);
  return order;
}

}  // namespace facet::cli
