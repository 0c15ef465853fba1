// A model without weights: it writes token ids into KV rows, reads back every row a query may see, and chooses the next
// token by what it read. A wrong, missing or foreign row therefore gives a wrong token, and the right tokens can be
// computed from the ids alone.
#pragma once

#include <functional>
#include <map>
#include <vector>

#include "facet/engine/model.h"

namespace facet::test {

using Ids = std::vector<std::int32_t>;

inline constexpr std::int64_t kStubVocabulary = 512;
// Its logits are all NaN after this id.
inline constexpr std::int32_t kPoisonId = 511;

// What the logits after `ids` depend on: every id for the global group, the last `window` ids for the sliding one.
std::uint64_t context_hash(const Ids& ids, std::int64_t window);
// Logits [kStubVocabulary] after a context; in [0, 8), no two alike in practice.
std::vector<float> stub_logits(std::uint64_t hash);
// The ids a greedy request of its own must give.
Ids greedy_continuation(Ids prompt, std::int64_t count, std::int64_t window);

class StubModel final : public Model {
 public:
  // Groups must already be planned; pools are filled with NaN.
  StubModel(std::vector<KvGroup> groups, std::int64_t max_sequences, Backend& backend, std::int64_t max_step_tokens,
            std::int64_t window);

  std::int64_t vocabulary() const override { return kStubVocabulary; }
  std::int64_t max_step_tokens() const override { return max_step_tokens_; }
  std::int64_t max_logit_rows() const override { return 3; }
  KvManager& kv() override { return kv_; }
  void forward(const StepInput& input) override;
  const float* logits(std::span<const std::int32_t> rows) override;
  std::vector<std::int32_t> choose(std::span<const std::int32_t> rows, std::span<const RowSampling> how) override;
  bool begin_choice(std::span<const RowSampling> how) override;
  std::vector<std::int32_t> end_choice() override { return chosen_; }
  std::vector<PluginUse> plugin_use() const override { return {}; }
  std::int64_t kernel_nanoseconds() const override { return 0; }

  // Called at the start of forward(); may throw.
  std::function<void(const StepInput&)> before_forward;
  // May change the ids that begin_choice() chose.
  std::function<void(Ids&)> after_choice;
  // Sequences of a batch are computed one after the other, each with its writes before its reads.
  bool last_sequence_first = false;

  // Work done for the request whose prompt begins with an id.
  struct Work {
    std::int64_t calls = 0;
    std::int64_t tokens = 0;
  };
  std::map<std::int32_t, Work> work;
  std::int64_t forwards = 0;
  // Rows of each sequence in each forward, in call order: what the scheduler decided.
  std::vector<std::vector<std::int64_t>> chunks;

 private:
  std::uint64_t read_context(std::int32_t index, std::int64_t position);

  KvManager kv_;
  std::int64_t max_step_tokens_;
  std::int64_t window_;
  std::vector<std::uint64_t> hashes_;  // of each token of the last forward
  Ids last_ids_;
  bool decodes_ = false;  // the last forward was a decoding step that was asked for all logits
  Ids chosen_;            // since begin_choice()
  std::vector<float> logits_;
};

}  // namespace facet::test
