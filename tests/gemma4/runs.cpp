#include "runs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

namespace facet::test {

std::unique_ptr<gemma4::Pipeline> load_pipeline(const PipelineConfig& config,
                                                const std::shared_ptr<gemma4::SharedParts>& shared, int pool_byte) {
  auto pipeline = std::make_unique<gemma4::Pipeline>(config.to_config(), gemma4::PipelineOptions{}, shared);
  pipeline->load();
  for (KvGroup& group : pipeline->model().kv().groups()) {
    const std::vector<char> fill(group.pool.bytes(), static_cast<char>(pool_byte));
    pipeline->shared()->backend->upload(group.pool.data(), fill.data(), fill.size());
  }
  return pipeline;
}

std::vector<RequestResult> run_together(gemma4::Pipeline& pipeline, const std::vector<Request>& requests) {
  const std::unique_ptr<Engine> engine = pipeline.make_engine();
  for (const Request& request : requests) engine->submit(request);
  engine->run();
  std::vector<RequestResult> results = engine->take_finished();
  std::sort(results.begin(), results.end(), [](const RequestResult& a, const RequestResult& b) { return a.id < b.id; });
  for (const RequestResult& result : results) {
    if (result.finish_reason == FinishReason::error) throw_error(ErrorKind::run, "{}", result.error);
  }
  return results;
}

Request score_request(const Ids& ids, ScorePath path) {
  Request request;
  request.score = true;
  if (path == ScorePath::prefill) {
    request.prompt = ids;
    request.max_tokens = 0;
  } else {
    request.prompt = {ids.front()};
    request.forced.assign(ids.begin() + 1, ids.end());
    request.max_tokens = static_cast<std::int64_t>(request.forced.size());
  }
  return request;
}

Request greedy_request(const Ids& prompt, std::int64_t max_tokens) {
  Request request;
  request.prompt = prompt;
  request.max_tokens = max_tokens;
  return request;
}

NllReference mean_nll(const std::vector<RequestResult>& results) {
  NllReference means;
  std::map<std::size_t, std::size_t> counts;
  std::size_t count = 0;
  for (const RequestResult& result : results) {
    const double sum = std::accumulate(result.nll.begin(), result.nll.end(), 0.0);
    const std::size_t length = result.nll.size() + 1;
    means.mean += sum;
    count += result.nll.size();
    means.buckets[length] += sum;
    counts[length] += result.nll.size();
    means.sequences.push_back(sum / static_cast<double>(result.nll.size()));
  }
  means.mean /= static_cast<double>(count);
  for (auto& [length, sum] : means.buckets) sum /= static_cast<double>(counts[length]);
  return means;
}

void expect_plan_is_allocated(const gemma4::Pipeline& pipeline) {
  const MemoryPlan plan = pipeline.memory();
  std::map<std::string, std::uint64_t> bytes;
  for (const MemoryAccount& account : pipeline.shared()->backend->accounts()) bytes[account.tag] = account.bytes;
  EXPECT_EQ(bytes[kWeightsTag], plan.weights);
  EXPECT_EQ(bytes[kKvTag], plan.kv());
  EXPECT_EQ(bytes[kWorkspaceTag], plan.workspace);
  EXPECT_EQ(bytes[kActivationsTag], plan.activations);
}

}  // namespace facet::test
