// Variants of a comparison, and the rounds that measure them.
#pragma once

#include "common.h"

namespace facet::cli {

// All requests once, on an engine of its own.
struct AbRound {
  double seconds = 0;
  std::int64_t generated = 0;
  EngineMetrics metrics;
  std::vector<RequestResult> results;  // in the order of the requests
};

struct AbVariant {
  std::string name;         // "A", "B", ...
  std::string shares_with;  // name of the variant whose checkpoint, threads and packed weights it uses; empty: its own
  std::unique_ptr<gemma4::Pipeline> pipeline;
  std::vector<Request> requests;
  std::vector<std::string> places;       // [requests]: "file:line"
  std::vector<AbRound> rounds;           // measured ones
  std::vector<PluginUse> uses;           // calls and time in measured rounds only
  std::vector<std::vector<double>> nll;  // [requests]: of the first variant's outputs; empty when not asked for
  std::vector<std::vector<std::int32_t>> outputs(std::size_t round) const;
};

struct AbOptions {
  std::vector<std::string> configs;
  std::string requests, out;
  std::int64_t rounds = 5;
  std::int64_t warmup = 1;
  std::int64_t max_tokens = 64;
  bool chat = false, ignore_eos = false, skip_nll = false;
};

// Plans every variant, so that all mistakes show before a weight is read, then reads the requests. Nothing is loaded.
std::vector<AbVariant> plan_variants(const AbOptions& options, const GlobalOptions& global);

// Indices of `variants` variants in the order of round `round`: every second round mirrors the one before it (A B B A),
// and every pair of rounds starts one variant later, so that a drift of the machine meets all alike.
std::vector<std::size_t> round_order(std::size_t variants, std::size_t round);

// Loads all variants and runs warm-up and measured rounds. Fills rounds, uses and nll. Returns the order in which the
// measured runs took place. Throws Error(run) naming variant and request when a request fails.
std::vector<std::size_t> measure_variants(std::vector<AbVariant>& variants, const AbOptions& options,
                                          const GlobalOptions& global);

}  // namespace facet::cli
