// Temperature, filters and draw for one row of logits, the same on every device.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace facet {

// How one token is chosen: SamplingParams without what needs the tokens before, and the number that decides. Plain
// data that a device reads.
struct RowSampling {
  double temperature = 0;  // 0: the most probable token, whatever the rest says
  std::int64_t top_k = 0;
  double top_p = 1;
  double min_p = 0;
  double uniform = 0;  // in [0, 1)
};

// Holds scratch memory of the size of the vocabulary. Not for use by several threads at once.
class TokenDraw {
 public:
  // logits [vocabulary]: minus infinity means impossible. The kept tokens stand side by side in order of their ids,
  // each as wide as its probability; `uniform` is a place in that row. -1 where a logit is NaN or plus infinity, or
  // nothing is possible.
  std::int32_t choose(std::span<const float> logits, const RowSampling& how);

 private:
  struct Candidate {
    std::int32_t id;
    float logit;
  };

  std::int32_t draw(std::span<const float> logits, float top);
  std::int32_t draw_filtered(std::span<const float> logits, float top);
  void keep_top_k(std::span<const float> logits);
  void keep_top_p(float top);
  float weight(float logit, float top) const;

  RowSampling how_;
  std::vector<float> weights_;
  std::vector<Candidate> candidates_;
};

}  // namespace facet
