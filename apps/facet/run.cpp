// facet run: generate text.
#include <algorithm>
#include <cstdio>
#include <map>

#include "common.h"
#include "facet/base/log.h"
#include "facet/tokenizer/stream_decoder.h"
#include "memory_limit.h"
#include "request_file.h"
#include "stop_signal.h"

namespace facet::cli {
namespace {

struct RunOptions {
  std::string config, prompt, prompt_ids, requests;
  std::int64_t max_tokens = 64;
  bool greedy = false, chat = false, ignore_eos = false;
  SamplingParams sampling;
  std::uint64_t seed = 0;
  CLI::Option *seed_given = nullptr, *prompt_given = nullptr, *ids_given = nullptr, *requests_given = nullptr;
  std::vector<CLI::Option*> warm_only;  // no use for them at temperature 0
};

// Flags that contradict each other or change nothing are mistakes. Requests of a file may choose for themselves.
void check_sampling_flags(const RunOptions& options) {
  const bool warm = options.sampling.temperature > 0;
  if (options.greedy && warm)
    throw_error(ErrorKind::usage, "--greedy: contradicts --temperature {}; leave one of the two out",
                options.sampling.temperature);
  if (warm || options.requests_given->count() > 0) return;
  for (const CLI::Option* option : options.warm_only) {
    if (option->count() > 0)
      throw_error(ErrorKind::usage,
                  "{}: has no effect on greedy choice; give --temperature above 0 too, or leave it out",
                  option->get_name());
  }
}

// What the flags say, before anything is loaded.
void check_options(const RunOptions& options) {
  const std::size_t sources =
      options.prompt_given->count() + options.ids_given->count() + options.requests_given->count();
  if (sources != 1) throw_error(ErrorKind::usage, "give one of --prompt, --prompt-ids and --requests");
  require_utf8("--prompt", options.prompt);
  try {
    validate(options.sampling);
  } catch (const Error& error) {
    throw Error(ErrorKind::usage, error.message());
  }
  check_sampling_flags(options);
}

// `places` gets where each request stands, for errors.
std::vector<Request> collect_requests(const RunOptions& options, gemma4::Pipeline& pipeline,
                                      std::vector<std::string>& places) {
  Request defaults;
  defaults.max_tokens = options.max_tokens;
  defaults.sampling = options.sampling;
  if (options.seed_given->count() > 0) defaults.sampling.seed = options.seed;
  if (options.greedy) defaults.sampling.temperature = 0;
  if (!options.ignore_eos) defaults.stop_ids = pipeline.stop_ids();
  if (options.requests_given->count() > 0)
    return read_requests(options.requests, pipeline, defaults, options.chat, &places);
  std::vector<Request> requests;
  if (options.ids_given->count() > 0) {
    for (std::vector<std::int32_t>& ids : read_token_lines(options.prompt_ids)) {
      requests.push_back(defaults);
      requests.back().prompt = std::move(ids);
      places.push_back(fmt::format("{}, sequence {}", options.prompt_ids, requests.size()));
    }
  } else {
    requests.push_back(defaults);
    requests.back().prompt = encode_text(pipeline, options.prompt, options.chat);
    places.emplace_back("--prompt");
  }
  return requests;
}

Json result_json(const RequestResult& result, const Tokenizer& tokenizer) {
  Json json = {{"prompt_ids", result.prompt},
               {"ids", result.ids},
               {"text", tokenizer.decode(result.ids, true)},
               {"finish_reason", to_string(result.finish_reason)},
               {"ttft_ms", result.token_us.empty() ? Json(nullptr) : Json(result.ttft_ms())},
               {"itl_ms", percentiles_json(result.inter_token_ms())},
               {"cached_tokens", result.cached_tokens},
               {"preemptions", result.preemptions}};
  if (!result.error.empty()) json["error"] = result.error;
  return json;
}

Json metrics_json(const Engine& engine, double seconds, std::int64_t generated) {
  const EngineMetrics& m = engine.metrics();
  return {{"seconds", seconds},
          {"generated_tokens", generated},
          {"tokens_per_second", seconds > 0 ? static_cast<double>(generated) / seconds : 0.0},
          {"steps", m.steps},
          {"prefill_tokens", m.prefill_tokens},
          {"decode_tokens", m.decode_tokens},
          {"cached_tokens", m.cached_tokens},
          {"preemptions", m.preemptions},
          {"kv_reserved_peak_bytes", m.peak_kv_reserved},
          {"kv_used_peak_bytes", m.peak_kv_used},
          {"decode_steps", m.decode_steps},
          {"decode_outside_kernels", m.decode_plugin_ns > 0 ? Json(1.0 - static_cast<double>(m.decode_plugin_ns) /
                                                                             static_cast<double>(m.decode_step_ns))
                                                            : Json()}};
}

// Streams the text of a single request to the terminal while it is generated.
class TextStream {
 public:
  TextStream(Engine& engine, const Tokenizer& tokenizer) : decoder_(tokenizer, true) {
    engine.on_token = [this](std::uint64_t, std::int32_t token) { put(decoder_.push(token)); };
  }
  void finish() { put(decoder_.finish() + '\n'); }

 private:
  static void put(const std::string& text) {
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
  }
  StreamDecoder decoder_;
};

// Requests of one command by their place in it. One that can never run is refused with the numbers; the others run.
class Batch {
 public:
  Batch(Engine& engine, const std::vector<Request>& requests) : results_(requests.size()) {
    for (std::size_t i = 0; i < requests.size(); ++i) {
      try {
        places_[engine.submit(requests[i])] = i;
      } catch (const Error& error) {
        if (error.kind() != ErrorKind::request) throw;
        results_[i].prompt = requests[i].prompt;
        results_[i].finish_reason = FinishReason::error;
        results_[i].error = error.message();
        log(LogLevel::info, "request {} of {} is refused: {}", i + 1, requests.size(), error.message());
      }
    }
  }
  // Fetches what the engine finished; results are in the order of the requests.
  const std::vector<RequestResult>& collect(Engine& engine) {
    for (RequestResult& result : engine.take_finished()) {
      const auto place = places_.find(result.id);
      results_[place->second] = std::move(result);
      places_.erase(place);
    }
    return results_;
  }
  // Whether a request has ended, well or not, of those that were collected.
  bool ended(std::size_t request) const {
    return std::none_of(places_.begin(), places_.end(), [&](const auto& place) { return place.second == request; });
  }
  std::size_t ended_count() const { return results_.size() - places_.size(); }

 private:
  std::vector<RequestResult> results_;
  std::map<std::uint64_t, std::size_t> places_;  // engine's id -> place, of requests that are not collected
};

void print_text(const std::vector<RequestResult>& results, const Batch& batch, const Tokenizer& tokenizer) {
  for (std::size_t i = 0; i < results.size(); ++i) {
    if (!batch.ended(i)) continue;
    const RequestResult& result = results[i];
    const bool failed = result.finish_reason == FinishReason::error;
    fmt::print("--- request {} ({} prompt tokens, {} generated, {}, first token {:.1f} ms)\n{}\n", i + 1,
               result.prompt.size(), result.ids.size(), to_string(result.finish_reason), result.ttft_ms(),
               failed ? result.error : tokenizer.decode(result.ids, true));
  }
}

// One error for all failed requests, after everything else was printed.
void throw_if_failed(const std::vector<RequestResult>& results, const std::vector<std::string>& places) {
  Problems failed;
  for (std::size_t i = 0; i < results.size(); ++i) {
    if (results[i].finish_reason == FinishReason::error)
      failed.add("request {}: {}: {}", i + 1, places[i], results[i].error);
  }
  failed.throw_if_any(ErrorKind::request,
                      fmt::format("{} of {} requests failed:", failed.lines().size(), results.size()));
}

// What the run was left with, and the words for it.
struct Stop {
  ErrorKind kind = ErrorKind::run;
  std::string text;
};

// The requests that had ended before the stop: null stands for the others.
void print_ended(const std::vector<RequestResult>& results, const Batch& batch, const Tokenizer& tokenizer,
                 const Stop& stop, bool json) {
  if (!json) {
    print_text(results, batch, tokenizer);
    std::fflush(stdout);  // before the words on stderr
    return;
  }
  Json document = {{"results", Json::array()}, {"error", {{"kind", to_string(stop.kind)}, {"text", stop.text}}}};
  for (std::size_t i = 0; i < results.size(); ++i)
    document["results"].push_back(batch.ended(i) ? result_json(results[i], tokenizer) : Json(nullptr));
  print_json(document);
}

// Runs all of the batch. A fault or a signal ends it early: what had ended is printed first. `stream`: its text is on
// stdout already.
void run_batch(Engine& engine, Batch& batch, const Tokenizer& tokenizer, TextStream* stream, bool json) {
  const StopSignal signal;
  try {
    engine.run(&StopSignal::received());
    if (stream != nullptr) stream->finish();
  } catch (const Error& error) {
    if (stream != nullptr) stream->finish();
    const std::vector<RequestResult>& results = batch.collect(engine);
    if (stream == nullptr) print_ended(results, batch, tokenizer, {error.kind(), error.full_text()}, json);
    throw;
  }
  const std::vector<RequestResult>& results = batch.collect(engine);
  if (batch.ended_count() == results.size()) return;
  const int received = StopSignal::received().load();
  const Stop stop{ErrorKind::run, fmt::format("stopped by signal {} when {} of {} requests had ended", received,
                                              batch.ended_count(), results.size())};
  if (stream == nullptr) print_ended(results, batch, tokenizer, stop, json);
  std::fputs(fmt::format("facet: run error: {}\n", stop.text).c_str(), stderr);
  StopSignal::die_of(received);
}

void run(const RunOptions& options, const GlobalOptions& global) {
  check_options(options);
  const auto pipeline = open_pipeline(options.config, global, true);
  const auto engine = pipeline->make_engine();
  const Tokenizer& tokenizer = pipeline->tokenizer();
  std::vector<std::string> places;
  const std::vector<Request> requests = collect_requests(options, *pipeline, places);
  const bool stream = !global.json && requests.size() == 1;
  std::optional<TextStream> text;
  if (stream) text.emplace(*engine, tokenizer);
  engine->restart_clock();
  Batch batch(*engine, requests);
  run_batch(*engine, batch, tokenizer, text ? &*text : nullptr, global.json);
  const double seconds = static_cast<double>(engine->now_us()) / 1e6;
  const std::vector<RequestResult>& results = batch.collect(*engine);
  std::int64_t generated = 0;
  for (const RequestResult& result : results) generated += static_cast<std::int64_t>(result.ids.size());
  const Json metrics = metrics_json(*engine, seconds, generated);
  if (global.json) {
    Json document = {{"results", Json::array()}, {"metrics", metrics}, {"record", run_record(*pipeline)}};
    for (const RequestResult& result : results) document["results"].push_back(result_json(result, tokenizer));
    print_json(document);
  } else {
    if (!stream) print_text(results, batch, tokenizer);
    // A line for people: that nobody can read it is no failure.
    std::fputs(fmt::format("{} tokens in {:.2f} s, {:.1f} tokens/s\n", generated, seconds,
                           metrics["tokens_per_second"].get<double>())
                   .c_str(),
               stderr);
  }
  throw_if_failed(results, places);
}

}  // namespace

void add_run(CLI::App& app, GlobalOptions& global) {
  CLI::App* command = app.add_subcommand("run", "Generate text with the configured plugins");
  auto options = std::make_shared<RunOptions>();
  command->add_option("config", options->config, "TOML file")->required();
  options->prompt_given = command->add_option("--prompt", options->prompt, "Text of one prompt");
  options->ids_given =
      command->add_option("--prompt-ids", options->prompt_ids, "File with one JSON array of token ids a line");
  options->requests_given = command->add_option("--requests", options->requests, "File with one JSON request a line");
  command->add_option("--max-tokens", options->max_tokens, "Tokens to generate at most")
      ->transform(whole_number(0, kMostTokens))
      ->capture_default_str();
  command->add_flag("--greedy", options->greedy,
                    "Always take the most probable token (the default without --temperature)");
  command->add_option("--temperature", options->sampling.temperature, "0: greedy")
      ->check(real_number("0 to 100"))
      ->capture_default_str();
  options->warm_only.push_back(
      command->add_option("--top-k", options->sampling.top_k, "Keep the k most probable tokens; 0: all")
          ->transform(whole_number(0, INT64_MAX))
          ->capture_default_str());
  options->warm_only.push_back(
      command->add_option("--top-p", options->sampling.top_p, "Keep the most probable tokens that reach this mass")
          ->check(real_number("above 0, up to 1"))
          ->capture_default_str());
  options->warm_only.push_back(
      command
          ->add_option("--min-p", options->sampling.min_p, "Keep tokens at least this fraction as probable as the best")
          ->check(real_number("0 to 1"))
          ->capture_default_str());
  command->add_option("--repetition-penalty", options->sampling.repetition_penalty, "1: none")
      ->check(real_number("0.01 to 100"))
      ->capture_default_str();
  options->seed_given =
      command->add_option("--seed", options->seed, "Makes sampling repeatable")->transform(whole_number(0, UINT64_MAX));
  command->add_flag("--chat", options->chat, "Put text prompts into the chat format as the user's turn");
  command->add_flag("--ignore-eos", options->ignore_eos, "Do not stop at the model's end tokens");
  add_memory_limit_option(*command, global);
  add_global_options(*command, global);
  command->callback([options, &global] {
    set_log_level(parse_log_level(global.log_level));
    run(*options, global);
  });
}

}  // namespace facet::cli
