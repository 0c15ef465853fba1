#include "bench_report.h"

#include <fmt/format.h>

#include <algorithm>

#include "bench_profile.h"
#include "facet/measure/percentiles.h"

namespace facet::cli {

Json spread_json(const std::vector<double>& values) {
  if (values.empty()) return nullptr;
  return {{"median", median(values)},
          {"min", *std::min_element(values.begin(), values.end())},
          {"max", *std::max_element(values.begin(), values.end())}};
}

Json bench_shape_json(const BenchShape& shape, BenchSamples samples, std::uint64_t bytes,
                      const std::vector<double>& bandwidth) {
  Json decode = nullptr;
  if (!samples["decode_ms_per_step"].empty()) {
    decode = {{"tokens_per_second", spread_json(samples["decode_tokens_per_second"])},
              {"ms_per_step", spread_json(samples["decode_ms_per_step"])},
              {"sequences_per_step", spread_json(samples["decode_sequences_per_step"])},
              {"outside_kernels", spread_json(samples["decode_outside_kernels"])},
              {"gap_us", spread_json(samples["decode_gap_us"])},
              {"weight_bytes_per_step", bytes},
              {"gb_per_s", spread_json(samples["decode_gb_per_s"])},
              {"share_of_read_bandwidth",
               bandwidth.empty() ? Json() : Json(median(samples["decode_gb_per_s"]) / median(bandwidth))}};
  }
  return {{"prompt_tokens", shape.prompt},
          {"generate", shape.generate},
          {"batch", shape.batch},
          {"prefill",
           {{"tokens_per_second", spread_json(samples["prefill_tokens_per_second"])},
            {"ms", spread_json(samples["prefill_ms"])}}},
          {"decode", std::move(decode)}};
}

namespace {

std::string spread_text(const Json& spread, int digits) {
  return fmt::format("{:.{}f} ({:.{}f} to {:.{}f})", spread["median"].get<double>(), digits,
                     spread["min"].get<double>(), digits, spread["max"].get<double>(), digits);
}

void print_decode(const Json& decode) {
  fmt::print("  decode   {} tokens/s, {} ms a step\n", spread_text(decode["tokens_per_second"], 1),
             spread_text(decode["ms_per_step"], 3));
  if (!decode["outside_kernels"].is_null()) {
    fmt::print("           {:.1f} % of a step outside linear and attention plugins\n",
               100 * decode["outside_kernels"]["median"].get<double>());
  }
  if (!decode["gap_us"].is_null())
    fmt::print("           {} us between steps without a kernel\n", spread_text(decode["gap_us"], 2));
  fmt::print("           {:.2f} MB of weights a step: {:.2f} GB/s", decode["weight_bytes_per_step"].get<double>() / 1e6,
             decode["gb_per_s"]["median"].get<double>());
  const Json& share = decode["share_of_read_bandwidth"];
  fmt::print("{}\n", share.is_null() ? "" : fmt::format(", {:.0f} % of the read bandwidth", 100 * share.get<double>()));
}

}  // namespace

void print_bench(const Json& document) {
  const Json& limit = document["read_bandwidth"];
  if (!limit.is_null()) {
    const Json& threads = limit["threads"];
    fmt::print("memory read bandwidth, {}: {} GB/s; ",
               threads.is_null() ? "device" : fmt::format("{} threads", threads.get<std::int64_t>()),
               spread_text(limit["gb_per_s"], 1));
  }
  if (!document["bf16_tflop_per_s"].is_null())
    fmt::print("bf16 products: {} TFLOP/s; ", spread_text(document["bf16_tflop_per_s"], 1));
  fmt::print("median (least to most) of {} repeats\n", document["repeat"].get<std::int64_t>());
  for (const Json& run : document["runs"]) {
    fmt::print("\nbatch {}, prompts of {} tokens, {} generated\n", run["batch"].get<std::int64_t>(),
               run["prompt_tokens"].get<std::int64_t>(), run["generate"].get<std::int64_t>());
    fmt::print("  prefill  {} tokens/s, {} ms\n", spread_text(run["prefill"]["tokens_per_second"], 1),
               spread_text(run["prefill"]["ms"], 2));
    if (!run["decode"].is_null()) print_decode(run["decode"]);
    if (!run.contains("profile")) continue;
    print_profile("prefill", run["profile"]["prefill"]);
    print_profile("decode", run["profile"]["decode"]);
  }
}

}  // namespace facet::cli
