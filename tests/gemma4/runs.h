// What the Gemma 4 tests do with a pipeline: likelihoods and greedy ids of several sequences in one engine.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "gemma4/pipeline.h"
#include "pipeline_config.h"
#include "reference_data.h"

namespace facet::test {

enum class ScorePath { prefill, decode };

inline constexpr int kNanByte = 0xff;  // a float, bf16 or scale of these bytes is NaN

// A loaded pipeline; weights are shared with `shared` when it is given. Its KV pools are filled with pool_byte, so that
// a row that is read before it was written shows.
std::unique_ptr<gemma4::Pipeline> load_pipeline(const PipelineConfig& config,
                                                const std::shared_ptr<gemma4::SharedParts>& shared = nullptr,
                                                int pool_byte = kNanByte);

// Submits all, runs them together, and returns results in the order of the requests. Throws when one has an error.
std::vector<RequestResult> run_together(gemma4::Pipeline& pipeline, const std::vector<Request>& requests);

Request score_request(const Ids& ids, ScorePath path);
Request greedy_request(const Ids& prompt, std::int64_t max_tokens);

// Means over predictions: of everything, by length, and of each sequence.
NllReference mean_nll(const std::vector<RequestResult>& results);

// The account of the device's memory holds the plan's bytes, category by category.
void expect_plan_is_allocated(const gemma4::Pipeline& pipeline);

}  // namespace facet::test
