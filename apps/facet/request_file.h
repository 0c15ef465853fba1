// Requests from the command line and from JSONL files.
#pragma once

#include "common.h"

namespace facet::cli {

// How tokens are chosen, from flags or from a request's "sampling" object.
SamplingParams parse_sampling(const nlohmann::json& object, SamplingParams defaults, const std::string& place);

// One JSON object a line: prompt or prompt_ids, max_tokens, optional arrival_ms, priority, sampling, chat. Unknown keys
// are errors with the nearest name; errors name file, line and field. Text prompts are encoded with exactly one BOS.
std::vector<Request> read_requests(const std::filesystem::path& file, gemma4::Pipeline& pipeline,
                                   const Request& defaults, bool chat);

// Ids of a text prompt, alone or as the user's turn of a chat.
std::vector<std::int32_t> encode_text(gemma4::Pipeline& pipeline, const std::string& text, bool chat);

}  // namespace facet::cli
