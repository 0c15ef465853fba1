#include "request_file.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <utility>

#include "facet/base/text.h"
#include "facet/tokenizer/utf8.h"
#include "gemma4/chat.h"

namespace facet::cli {
namespace {

// A year: far above any real trace, far below what overflows microseconds.
constexpr double kLatestArrivalMs = 365.0 * 24 * 3600 * 1000;

// Throws for keys outside `known`, naming the nearest.
void check_keys(const nlohmann::json& object, const std::vector<std::string>& known, const std::string& place) {
  if (!object.is_object()) throw_error(ErrorKind::usage, "{}: expected a JSON object, found {}", place, object.dump());
  for (const auto& [key, value] : object.items()) {
    if (std::find(known.begin(), known.end(), key) != known.end()) continue;
    const std::string near = nearest_name(key, known);
    throw_error(ErrorKind::usage, "{}: unknown key '{}'{}", place, key,
                near.empty() ? "" : fmt::format("; did you mean '{}'?", near));
  }
}

template <typename T>
T value_or(const nlohmann::json& object, const char* key, T fallback, const std::string& place) {
  const auto found = object.find(key);
  if (found == object.end() || found->is_null()) return fallback;
  const bool whole = std::is_integral_v<T>;
  if (!(whole ? found->is_number_integer() : found->is_number())) {
    throw_error(ErrorKind::usage, "{}: {}: expected a {}, found {}", place, key, whole ? "whole number" : "number",
                found->dump());
  }
  if constexpr (std::is_integral_v<T>) {
    // nlohmann::json converts with a plain cast, which would wrap.
    using Limits = std::numeric_limits<T>;
    const bool fits = found->is_number_unsigned() ? std::in_range<T>(found->template get<std::uint64_t>())
                                                  : std::in_range<T>(found->template get<std::int64_t>());
    if (!fits) {
      throw_error(ErrorKind::usage, "{}: {}: {} is not in [{}, {}]", place, key, found->dump(), Limits::min(),
                  Limits::max());
    }
  }
  return found->get<T>();
}

std::vector<std::int32_t> read_prompt(const nlohmann::json& object, gemma4::Pipeline& pipeline, bool chat,
                                      const std::string& place) {
  const bool has_text = object.contains("prompt"), has_ids = object.contains("prompt_ids");
  if (has_text == has_ids) throw_error(ErrorKind::usage, "{}: give either prompt or prompt_ids", place);
  if (has_text) {
    if (!object["prompt"].is_string())
      throw_error(ErrorKind::usage, "{}: prompt: expected text, found {}", place, object["prompt"].dump());
    try {
      return encode_text(pipeline, object["prompt"].get<std::string>(), chat);
    } catch (const Error& error) {
      throw Error(error.kind(), fmt::format("{}: prompt: {}", place, error.full_text()));
    }
  }
  const nlohmann::json& ids = object["prompt_ids"];
  const auto is_id = [](const nlohmann::json& id) {
    return id.is_number_integer() && id.get<std::int64_t>() >= INT32_MIN && id.get<std::int64_t>() <= INT32_MAX;
  };
  if (!ids.is_array() || !std::all_of(ids.begin(), ids.end(), is_id)) {
    throw_error(ErrorKind::usage, "{}: prompt_ids: expected an array of token ids", place);
  }
  return ids.get<std::vector<std::int32_t>>();
}

}  // namespace

CLI::Validator whole_number(std::uint64_t least, std::uint64_t most) {
  const std::string range = fmt::format("[{}, {}]", least, most);
  const auto read = [least, most, range](std::string& text) -> std::string {
    std::uint64_t value = 0;
    const char* end = text.data() + text.size();
    const std::from_chars_result result = std::from_chars(text.data(), end, value);
    if (result.ec != std::errc() || result.ptr != end || value < least || value > most)
      return fmt::format("'{}' is not a whole number in {}", text, range);
    text = std::to_string(value);
    return {};
  };
  return {read, "in " + range};
}

std::function<void(const std::vector<std::string>&)> whole_number_list(const char* option, std::uint64_t least,
                                                                       std::uint64_t most,
                                                                       std::vector<std::int64_t>& values) {
  return [=, &values](const std::vector<std::string>& words) {
    values.clear();
    for (const std::string& word : words) {
      for (std::size_t begin = 0, end = 0; begin <= word.size(); begin = end + 1) {
        end = std::min(word.find(',', begin), word.size());
        std::string item = word.substr(begin, end - begin);
        const std::string mistake = whole_number(least, most)(item);
        if (!mistake.empty()) throw CLI::ValidationError(option, fmt::format("in '{}': {}", word, mistake));
        values.push_back(std::stoll(item));
      }
    }
  };
}

CLI::Validator real_number(const char* range) {
  const auto read = [range](std::string& text) -> std::string {
    double value = 0;
    const char* end = text.data() + text.size();
    const std::from_chars_result result = std::from_chars(text.data(), end, value);
    if (result.ec == std::errc() && result.ptr == end) return {};
    return fmt::format("'{}' is not a number, {}", text, range);
  };
  return {read, range};
}

CLI::Validator not_empty() {
  return {[](std::string& text) { return text.empty() ? std::string("must not be empty") : std::string(); }, ""};
}

void require_utf8(const char* option, const std::string& text) {
  const std::size_t byte = find_invalid_utf8(text);
  if (byte != std::string::npos)
    throw_error(ErrorKind::usage, "{}: the text is not valid UTF-8 at byte {}", option, byte);
}

SamplingParams parse_sampling(const nlohmann::json& object, SamplingParams sampling, const std::string& place) {
  check_keys(object, {"temperature", "top_k", "top_p", "min_p", "seed", "repetition_penalty"}, place);
  sampling.temperature = value_or(object, "temperature", sampling.temperature, place);
  sampling.top_k = value_or(object, "top_k", sampling.top_k, place);
  sampling.top_p = value_or(object, "top_p", sampling.top_p, place);
  sampling.min_p = value_or(object, "min_p", sampling.min_p, place);
  sampling.repetition_penalty = value_or(object, "repetition_penalty", sampling.repetition_penalty, place);
  if (object.contains("seed") && !object["seed"].is_null())
    sampling.seed = value_or<std::uint64_t>(object, "seed", 0, place);
  return sampling;
}

std::vector<std::int32_t> encode_text(gemma4::Pipeline& pipeline, const std::string& text, bool chat) {
  if (!chat) return pipeline.tokenizer().encode_prompt(text);
  const gemma4::ChatMessage message{"user", text};
  return gemma4::ChatFormat(pipeline.tokenizer()).encode({&message, 1});
}

std::vector<Request> read_requests(const std::filesystem::path& file, gemma4::Pipeline& pipeline,
                                   const Request& defaults, bool chat, std::vector<std::string>* places) {
  std::vector<Request> requests;
  for (const JsonLine& line : read_json_lines(file)) {
    const std::string place = fmt::format("{}:{}", file.string(), line.line);
    check_keys(line.object, {"prompt", "prompt_ids", "max_tokens", "arrival_ms", "priority", "sampling"}, place);
    Request request = defaults;
    request.prompt = read_prompt(line.object, pipeline, chat, place);
    request.max_tokens = value_or(line.object, "max_tokens", defaults.max_tokens, place);
    if (request.max_tokens < 0 || static_cast<std::uint64_t>(request.max_tokens) > kMostTokens)
      throw_error(ErrorKind::usage, "{}: max_tokens: {} is not in [0, {}]", place, request.max_tokens, kMostTokens);
    const double arrival_ms = value_or(line.object, "arrival_ms", 0.0, place);
    if (!(arrival_ms >= 0 && arrival_ms <= kLatestArrivalMs))
      throw_error(ErrorKind::usage, "{}: arrival_ms: {} is not in [0, {}]", place, arrival_ms, kLatestArrivalMs);
    request.arrival_us = static_cast<std::int64_t>(1000.0 * arrival_ms);
    request.priority = value_or(line.object, "priority", defaults.priority, place);
    if (line.object.contains("sampling"))
      request.sampling = parse_sampling(line.object["sampling"], defaults.sampling, place + ": sampling");
    requests.push_back(std::move(request));
    if (places != nullptr) places->push_back(place);
  }
  if (requests.empty()) throw_error(ErrorKind::usage, "{}: holds no request", file.string());
  return requests;
}

}  // namespace facet::cli
