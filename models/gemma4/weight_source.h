// Where a model's weights come from: a checkpoint, or a generator for measuring speed without one.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "facet/checkpoint/linear_weight.h"
#include "gemma4/gemma4_plan.h"

namespace facet::gemma4 {

class WeightSource {
 public:
  virtual ~WeightSource() = default;

  // For records: the folder of the checkpoint, or what is generated from which seed.
  virtual std::string description() const = 0;
  virtual std::uint64_t content_hash() const = 0;
  virtual CheckpointFacts facts() const = 0;
  // By full tensor name. Throws Error(checkpoint) as load_vector() and load_linear() do.
  virtual std::vector<float> vector(const std::string& name, std::int64_t count) const = 0;
  virtual LinearWeight linear(const std::string& module, std::int64_t out_features, std::int64_t in_features) const = 0;
  // Memory of what was read so far may be given back.
  virtual void release_pages() const {}
};

// The checkpoint must outlive the source. Throws Error(checkpoint) when it is not a whole Gemma 4.
std::unique_ptr<WeightSource> make_checkpoint_source(const Checkpoint& checkpoint);

// Names that make_synthetic_source() knows.
std::vector<std::string> synthetic_models();
// Random weights in the shape of a released model, for speed and memory: INT4 codes of Gaussian shape in groups of 128
// with a scale each, embedding and head too, norms of one. The same seed gives the same weights on every machine.
// Throws Error(config) for an unknown name. `host` offers its threads and must outlive the source.
std::unique_ptr<WeightSource> make_synthetic_source(const std::string& name, std::uint64_t seed,
                                                    const abi::HostTable& host);

}  // namespace facet::gemma4
