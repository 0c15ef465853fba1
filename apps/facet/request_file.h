// Requests from the command line and from JSONL files.
#pragma once

#include <functional>

#include "common.h"

namespace facet::cli {

// The most tokens that a request may ask for.
constexpr std::uint64_t kMostTokens = std::uint64_t{1} << 31;

// For CLI::Option::transform: the whole text must be decimal digits of a number in [least, most]. CLI11 itself reads
// a leading 0 as octal and lets values wrap.
CLI::Validator whole_number(std::uint64_t least, std::uint64_t most);
// The same for one or more numbers with commas between them, of which none may be missing. For
// CLI::App::add_option_function: CLI11's own lists drop empty items.
std::function<void(const std::vector<std::string>&)> whole_number_list(const char* option, std::uint64_t least,
                                                                       std::uint64_t most,
                                                                       std::vector<std::int64_t>& values);
// For CLI::Option::check: the whole text must be a decimal number; `range` is said in the refusal and in the help, such
// as "0 to 100", and held by whoever takes the value.
CLI::Validator real_number(const char* range);
// For CLI::Option::check: refuses an empty text.
CLI::Validator not_empty();
// Throws Error(usage) naming the option and the byte when `text` is not valid UTF-8.
void require_utf8(const char* option, const std::string& text);

// How tokens are chosen, from flags or from a request's "sampling" object.
SamplingParams parse_sampling(const nlohmann::json& object, SamplingParams defaults, const std::string& place);

// One JSON object a line: prompt or prompt_ids, max_tokens, optional arrival_ms, priority, sampling, chat. Unknown keys
// are errors with the nearest name; errors name file, line and field. Text prompts are encoded with exactly one BOS.
// `places` gets "file:line" of every request, for errors that show later.
std::vector<Request> read_requests(const std::filesystem::path& file, gemma4::Pipeline& pipeline,
                                   const Request& defaults, bool chat, std::vector<std::string>* places = nullptr);

// Ids of a text prompt, alone or as the user's turn of a chat.
std::vector<std::int32_t> encode_text(gemma4::Pipeline& pipeline, const std::string& text, bool chat);

}  // namespace facet::cli
