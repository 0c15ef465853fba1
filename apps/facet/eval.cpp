// facet eval: negative log-likelihood of token sequences through the configured plugins.
#include <cmath>
#include <map>

#include "common.h"
#include "facet/base/log.h"

namespace facet::cli {
namespace {

struct EvalOptions {
  std::string config, tokens, path = "prefill";
};

Request make_request(const std::vector<std::int32_t>& tokens, bool decode) {
  Request request;
  request.score = true;
  if (decode) {
    request.prompt = {tokens.front()};
    request.forced.assign(tokens.begin() + 1, tokens.end());
    request.max_tokens = static_cast<std::int64_t>(request.forced.size());
  } else {
    request.prompt = tokens;
    request.max_tokens = 0;
  }
  return request;
}

struct Sum {
  double nll = 0;
  std::int64_t count = 0;
};

void eval(const EvalOptions& options, const GlobalOptions& global) {
  if (options.path != "prefill" && options.path != "decode") {
    throw_error(ErrorKind::usage, "--path: '{}' is unknown; use prefill or decode", options.path);
  }
  const std::vector<std::vector<std::int32_t>> sequences = read_token_lines(options.tokens);
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    if (sequences[i].size() < 2)
      throw_error(ErrorKind::usage, "{}: sequence {} has fewer than 2 tokens", options.tokens, i + 1);
  }
  const auto pipeline = open_pipeline(options.config, global, true);
  const auto engine = pipeline->make_engine();
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    try {
      engine->submit(make_request(sequences[i], options.path == "decode"));
    } catch (Error& error) {
      error.add_context(fmt::format("in sequence {} of {}", i + 1, options.tokens));
      throw;
    }
  }
  Progress progress("evaluating");
  std::vector<RequestResult> results;
  while (engine->step()) {
    for (RequestResult& result : engine->take_finished()) results.push_back(std::move(result));
    progress.update(results.size(), sequences.size());
  }
  std::sort(results.begin(), results.end(), [](const RequestResult& a, const RequestResult& b) { return a.id < b.id; });
  Sum total;
  std::map<std::size_t, Sum> buckets;
  Json list = Json::array();
  for (std::size_t i = 0; i < results.size(); ++i) {
    const RequestResult& result = results[i];
    if (result.finish_reason == FinishReason::error)
      throw_error(ErrorKind::run, "{}: sequence {} failed: {}", options.tokens, i + 1, result.error);
    Sum sum;
    for (const double nll : result.nll) sum.nll += nll;
    sum.count = static_cast<std::int64_t>(result.nll.size());
    for (Sum* target : {&total, &buckets[sequences[i].size()]}) {
      target->nll += sum.nll;
      target->count += sum.count;
    }
    list.push_back({{"tokens", sequences[i].size()}, {"nll", sum.nll / static_cast<double>(sum.count)}});
  }
  const double mean = total.nll / static_cast<double>(total.count);
  Json bucket_means = Json::object();
  for (const auto& [length, sum] : buckets)
    bucket_means[std::to_string(length)] = sum.nll / static_cast<double>(sum.count);
  if (global.json) {
    print_json({{"mean_nll", mean},
                {"perplexity", std::exp(mean)},
                {"predictions", total.count},
                {"buckets", bucket_means},
                {"sequences", list},
                {"record", run_record(*pipeline)}});
    return;
  }
  fmt::print("mean NLL {:.6f}, perplexity {:.4f}, {} predictions in {} sequences\n", mean, std::exp(mean), total.count,
             sequences.size());
  for (const auto& [length, value] : bucket_means.items())
    fmt::print("  length {:>6}: {:.6f}\n", length, value.get<double>());
}

}  // namespace

void add_eval(CLI::App& app, GlobalOptions& global) {
  CLI::App* command = app.add_subcommand("eval", "Negative log-likelihood of token sequences");
  auto options = std::make_shared<EvalOptions>();
  command->add_option("config", options->config, "TOML file")->required();
  command->add_option("--tokens", options->tokens, "File with one JSON array of token ids a line")->required();
  command
      ->add_option("--path", options->path, "prefill: in the configured chunks; decode: every token by the decode path")
      ->capture_default_str();
  add_global_options(*command, global);
  command->callback([options, &global] {
    set_log_level(parse_log_level(global.log_level));
    eval(*options, global);
  });
}

}  // namespace facet::cli
