#include "direct_run.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace facet::test {
namespace {

void append_logits(Model& model, std::int64_t tokens, std::vector<float>& logits) {
  for (std::int64_t begin = 0; begin < tokens; begin += model.max_logit_rows()) {
    std::vector<std::int32_t> rows(static_cast<std::size_t>(std::min(model.max_logit_rows(), tokens - begin)));
    std::iota(rows.begin(), rows.end(), static_cast<std::int32_t>(begin));
    const float* values = model.logits(rows);
    logits.insert(logits.end(), values, values + static_cast<std::int64_t>(rows.size()) * model.vocabulary());
  }
}

}  // namespace

DirectRun run_directly(gemma4::Pipeline& pipeline, const Ids& ids, std::int64_t chunk) {
  Model& model = pipeline.model();
  const auto& facts = pipeline.plan().facts().model;
  DirectRun run;
  run.width = facts.hidden;
  run.vocabulary = facts.vocabulary;
  run.hidden.resize(facts.layers.size() + 1);
  const std::uint64_t sequence = 1;
  model.kv().open(sequence, ids, 0, 0);
  for (std::size_t done = 0; done < ids.size();) {
    const std::size_t count = std::min(static_cast<std::size_t>(chunk), ids.size() - done);
    if (model.kv().reserve(sequence, static_cast<std::int64_t>(count)) != KvResult::ok)
      throw_error(ErrorKind::run, "no room for {} rows after {}", count, done);
    model.kv().begin_step({&sequence, 1});
    std::vector<std::int32_t> positions(count), owner(count, 0);
    std::iota(positions.begin(), positions.end(), static_cast<std::int32_t>(done));
    const std::int32_t token_begin[] = {0, static_cast<std::int32_t>(count)};
    const auto first = static_cast<std::int32_t>(done);
    StepInput input;
    input.ids = ids.data() + done;
    input.positions = positions.data();
    input.sequence = owner.data();
    const auto end = static_cast<std::int64_t>(done + count);
    input.batch = {sizeof(abi::BatchView),           1,  static_cast<std::int64_t>(count), token_begin, &first,
                   static_cast<std::int64_t>(count), end};
    input.observer = [&](std::int32_t layer, const float* hidden) {
      std::vector<float>& all = run.hidden.at(static_cast<std::size_t>(layer));
      all.insert(all.end(), hidden, hidden + static_cast<std::int64_t>(count) * run.width);
    };
    model.forward(input);
    model.kv().commit(sequence, {ids.data() + done, count});
    append_logits(model, static_cast<std::int64_t>(count), run.logits);
    done += count;
  }
  model.kv().close(sequence);
  return run;
}

Deviation deviation(const std::vector<float>& values, std::size_t first, const std::vector<float>& right) {
  double squares = 0;
  for (const float x : right) squares += static_cast<double>(x) * static_cast<double>(x);
  const double scale = std::sqrt(squares / static_cast<double>(right.size()));
  Deviation worst;
  if (first + right.size() > values.size()) return {std::numeric_limits<double>::infinity(), 0};
  for (std::size_t i = 0; i < right.size(); ++i) {
    const double relative = std::abs(static_cast<double>(values[first + i]) - static_cast<double>(right[i])) / scale;
    // Written so that NaN is the worst of all.
    if (!(relative <= worst.relative)) worst = {relative, i};
  }
  return worst;
}

}  // namespace facet::test
