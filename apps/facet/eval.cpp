// facet eval: negative log-likelihood of token sequences through the configured plugins, and how far the model is from
// another.
#include <cmath>
#include <map>

#include "common.h"
#include "eval_against.h"
#include "facet/base/log.h"
#include "memory_limit.h"

namespace facet::cli {
namespace {

struct EvalOptions {
  std::string config, tokens, against, path = "prefill";
  bool decode() const { return path == "decode"; }
};

using Sequences = std::vector<std::vector<std::int32_t>>;

Sequences read_sequences(const std::string& file) {
  Sequences sequences = read_token_lines(file);
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    if (sequences[i].size() < 2) throw_error(ErrorKind::usage, "{}: sequence {} has fewer than 2 tokens", file, i + 1);
  }
  return sequences;
}

// All sequences together, as many at once as the configuration lets run.
std::vector<SequenceScore> score_all(gemma4::Pipeline& pipeline, const EvalOptions& options,
                                     const Sequences& sequences) {
  const auto engine = pipeline.make_engine();
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    try {
      engine->submit(score_request(sequences[i], options.decode()));
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
  std::vector<SequenceScore> scores(results.size());
  for (std::size_t i = 0; i < results.size(); ++i) {
    if (results[i].finish_reason == FinishReason::error)
      throw_error(ErrorKind::run, "{}: sequence {} failed: {}", options.tokens, i + 1, results[i].error);
    scores[i].nll = std::move(results[i].nll);
  }
  return scores;
}

// One sequence after another, through both models.
std::vector<SequenceScore> compare_all(gemma4::Pipeline& pipeline, gemma4::Pipeline& reference,
                                       const EvalOptions& options, const Sequences& sequences) {
  EvalComparison comparison(pipeline, reference);
  Progress progress("comparing");
  std::vector<SequenceScore> scores;
  for (const std::vector<std::int32_t>& tokens : sequences) {
    try {
      scores.push_back(comparison.score(tokens, options.decode()));
    } catch (Error& error) {
      error.add_context(fmt::format("in sequence {} of {}", scores.size() + 1, options.tokens));
      throw;
    }
    progress.update(scores.size(), sequences.size());
  }
  return scores;
}

// Over sequences of one length, or over all.
struct Sum {
  double nll = 0;
  double reference_nll = 0;
  std::int64_t count = 0;
  LogitDifferenceSum difference;

  void add(const SequenceScore& score) {
    for (const double value : score.nll) nll += value;
    for (const double value : score.reference_nll) reference_nll += value;
    count += static_cast<std::int64_t>(score.nll.size());
    difference.add(score.difference);
  }
  double mean_nll() const { return nll / static_cast<double>(count); }
  double mean_reference_nll() const { return reference_nll / static_cast<double>(count); }
};

struct Sums {
  Sum total;
  std::map<std::size_t, Sum> buckets;  // by length
};

Json difference_json(const Sum& sum) {
  return {{"reference_nll", sum.mean_reference_nll()},
          {"mean_kl", sum.difference.mean_kl()},
          {"top1_agreement", sum.difference.top1_agreement()},
          {"max_logit_difference", sum.difference.largest}};
}

Json sequence_json(std::size_t tokens, const SequenceScore& score, bool compared) {
  Sum sum;
  sum.add(score);
  Json entry = {{"tokens", tokens}, {"nll", sum.mean_nll()}};
  if (compared) entry.update(difference_json(sum));
  return entry;
}

void print_text(const Sums& sums, std::size_t sequences, const gemma4::Pipeline* reference) {
  const Sum& total = sums.total;
  fmt::print("mean NLL {:.6f}, perplexity {:.4f}, {} predictions in {} sequences\n", total.mean_nll(),
             std::exp(total.mean_nll()), total.count, sequences);
  for (const auto& [length, sum] : sums.buckets) fmt::print("  length {:>6}: {:.6f}\n", length, sum.mean_nll());
  if (reference == nullptr) return;
  const auto line = [](const Sum& sum) {
    return fmt::format("mean KL {:.3e} nats, top-1 agreement {:.4f}, largest logit difference {:.3e}, NLL {:+.6f}",
                       sum.difference.mean_kl(), sum.difference.top1_agreement(), sum.difference.largest,
                       sum.mean_nll() - sum.mean_reference_nll());
  };
  fmt::print("against {}: {}\n", reference->config().file.string(), line(total));
  for (const auto& [length, sum] : sums.buckets) fmt::print("  length {:>6}: {}\n", length, line(sum));
}

Json document(const Sums& sums, Json list, gemma4::Pipeline& pipeline, gemma4::Pipeline* reference) {
  Json buckets = Json::object(), against_buckets = Json::object();
  for (const auto& [length, sum] : sums.buckets) {
    buckets[std::to_string(length)] = sum.mean_nll();
    if (reference != nullptr) against_buckets[std::to_string(length)] = difference_json(sum);
  }
  Json result = {{"mean_nll", sums.total.mean_nll()}, {"perplexity", std::exp(sums.total.mean_nll())},
                 {"predictions", sums.total.count},   {"buckets", buckets},
                 {"sequences", std::move(list)},      {"record", run_record(pipeline)}};
  if (reference != nullptr) {
    result["against"] = difference_json(sums.total);
    result["against"]["buckets"] = std::move(against_buckets);
    result["against"]["record"] = run_record(*reference);
  }
  return result;
}

// Weights are packed once where both configurations read the same checkpoint.
std::unique_ptr<gemma4::Pipeline> open_reference(const std::string& file, gemma4::Pipeline& pipeline,
                                                 const GlobalOptions& global) {
  return open_pipeline(file, global, true, pipeline.can_share(load_config(file)) ? pipeline.shared() : nullptr);
}

void eval(const EvalOptions& options, const GlobalOptions& global) {
  if (options.path != "prefill" && options.path != "decode") {
    throw_error(ErrorKind::usage, "--path: '{}' is unknown; use prefill or decode", options.path);
  }
  const Sequences sequences = read_sequences(options.tokens);
  const auto pipeline = open_pipeline(options.config, global, true);
  const auto reference = options.against.empty() ? nullptr : open_reference(options.against, *pipeline, global);
  const std::vector<SequenceScore> scores =
      reference ? compare_all(*pipeline, *reference, options, sequences) : score_all(*pipeline, options, sequences);
  Sums sums;
  Json list = Json::array();
  for (std::size_t i = 0; i < scores.size(); ++i) {
    sums.total.add(scores[i]);
    sums.buckets[sequences[i].size()].add(scores[i]);
    list.push_back(sequence_json(sequences[i].size(), scores[i], reference != nullptr));
  }
  if (global.json) {
    print_json(document(sums, std::move(list), *pipeline, reference.get()));
  } else {
    print_text(sums, sequences.size(), reference.get());
  }
}

}  // namespace

void add_eval(CLI::App& app, GlobalOptions& global) {
  CLI::App* command =
      app.add_subcommand("eval", "Negative log-likelihood of token sequences, and the distance from another model");
  auto options = std::make_shared<EvalOptions>();
  command->add_option("config", options->config, "TOML file")->required();
  command
      ->add_option("--tokens", options->tokens,
                   "File with one JSON array of token ids a line; lines 'length N:' of the "
                   "result are over all sequences of exactly N tokens")
      ->required();
  command->add_option(
      "--against", options->against,
      "TOML file of a reference: adds mean KL(reference || CONFIG) in nats a prediction, top-1 agreement "
      "the largest logit difference, and NLL: CONFIG's minus the reference's, below 0 where CONFIG predicts better. "
      "Sequences then run one by one");
  command
      ->add_option("--path", options->path, "prefill: in the configured chunks; decode: every token by the decode path")
      ->capture_default_str();
  add_memory_limit_option(*command, global);
  add_global_options(*command, global);
  command->callback([options, &global] {
    set_log_level(parse_log_level(global.log_level));
    eval(*options, global);
  });
}

}  // namespace facet::cli
