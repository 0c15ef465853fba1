#include "facet/base/log.h"
#include "facet/checkpoint/prefixes.h"
#include "gemma4/tensor_check.h"
#include "gemma4/weight_source.h"

namespace facet::gemma4 {
namespace {

class CheckpointSource final : public WeightSource {
 public:
  explicit CheckpointSource(const Checkpoint& checkpoint) : checkpoint_(checkpoint), facts_(read_facts(checkpoint)) {
    check_tensors(checkpoint, facts_);
    const std::string skipped = skipped_modules(checkpoint, facts_.prefix).text();
    if (!skipped.empty()) log(LogLevel::info, "{}", skipped);
  }

  std::string description() const override { return checkpoint_.directory().string(); }
  std::uint64_t content_hash() const override { return checkpoint_.content_hash(); }
  CheckpointFacts facts() const override { return facts_; }
  std::vector<float> vector(const std::string& name, std::int64_t count) const override {
    return load_vector(checkpoint_, name, count);
  }
  LinearWeight linear(const std::string& module, std::int64_t out_features, std::int64_t in_features) const override {
    return load_linear(checkpoint_, facts_.quantization, module, out_features, in_features);
  }
  void release_pages() const override { checkpoint_.release_pages(); }

 private:
  const Checkpoint& checkpoint_;
  CheckpointFacts facts_;
};

}  // namespace

std::unique_ptr<WeightSource> make_checkpoint_source(const Checkpoint& checkpoint) {
  return std::make_unique<CheckpointSource>(checkpoint);
}

}  // namespace facet::gemma4
