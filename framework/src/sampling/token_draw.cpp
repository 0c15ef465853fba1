#include "facet/sampling/token_draw.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "logit_scan.h"

namespace facet {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
// A heap of up to this many candidates is faster than nth_element over a whole vocabulary.
constexpr std::int64_t kHeapLimit = 1024;

// More probable first; equal logits by id, so that a cut through a tie is the same on every machine.
constexpr auto kMoreProbable = [](const auto& a, const auto& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
};

}  // namespace

// Relative to the most probable token, whose weight is 1. Divides, because 1 / temperature may overflow.
float TokenDraw::weight(float logit, float top) const {
  return exp_negative(static_cast<float>((static_cast<double>(logit) - static_cast<double>(top)) / how_.temperature));
}

std::int32_t TokenDraw::choose(std::span<const float> logits, const RowSampling& how) {
  const LogitScan found = scan_logits(logits);
  if (found.argmax < 0 || how.temperature == 0) return found.argmax;
  how_ = how;
  return draw(logits, found.max);
}

std::int32_t TokenDraw::draw(std::span<const float> logits, float top) {
  const auto vocabulary = static_cast<std::int64_t>(logits.size());
  if ((how_.top_k > 0 && how_.top_k < vocabulary) || how_.top_p < 1) return draw_filtered(logits, top);
  weights_.resize(logits.size());
  for (std::size_t id = 0; id < logits.size(); ++id) weights_[id] = weight(logits[id], top);
  double total = 0;
  for (float& value : weights_) {
    if (static_cast<double>(value) < how_.min_p) value = 0;
    total += value;
  }
  double left = how_.uniform * total;
  std::size_t chosen = 0;
  for (std::size_t id = 0; id < logits.size(); ++id) {
    if (weights_[id] == 0) continue;
    chosen = id;  // rounding may leave a remainder at the end: the last possible token takes it
    left -= weights_[id];
    if (left < 0) break;
  }
  return static_cast<std::int32_t>(chosen);
}

std::int32_t TokenDraw::draw_filtered(std::span<const float> logits, float top) {
  keep_top_k(logits);
  if (how_.top_p < 1) keep_top_p(top);
  std::sort(candidates_.begin(), candidates_.end(), [](const auto& a, const auto& b) { return a.id < b.id; });
  weights_.clear();
  double total = 0;
  for (const Candidate& candidate : candidates_) {
    const float value = weight(candidate.logit, top);
    weights_.push_back(static_cast<double>(value) >= how_.min_p ? value : 0);
    total += weights_.back();
  }
  double left = how_.uniform * total;
  std::int32_t chosen = candidates_.front().id;
  for (std::size_t i = 0; i < candidates_.size(); ++i) {
    if (weights_[i] == 0) continue;
    chosen = candidates_[i].id;
    left -= weights_[i];
    if (left < 0) break;
  }
  return chosen;
}

// Leaves the k most probable possible tokens in candidates_, in any order.
void TokenDraw::keep_top_k(std::span<const float> logits) {
  candidates_.clear();
  const auto vocabulary = static_cast<std::int64_t>(logits.size());
  const std::int64_t kept = how_.top_k > 0 ? std::min(how_.top_k, vocabulary) : vocabulary;
  const bool heap = kept <= kHeapLimit && kept < vocabulary;
  for (std::size_t id = 0; id < logits.size(); ++id) {
    const Candidate candidate{static_cast<std::int32_t>(id), logits[id]};
    if (candidate.logit == -kInfinity) continue;
    const bool full = static_cast<std::int64_t>(candidates_.size()) >= kept;
    if (!heap || !full) {
      candidates_.push_back(candidate);
      if (heap) std::push_heap(candidates_.begin(), candidates_.end(), kMoreProbable);
    } else if (candidate.logit > candidates_.front().logit) {
      // The front is the least probable of those kept; an equal logit with a higher id never replaces it.
      std::pop_heap(candidates_.begin(), candidates_.end(), kMoreProbable);
      candidates_.back() = candidate;
      std::push_heap(candidates_.begin(), candidates_.end(), kMoreProbable);
    }
  }
  if (!heap && static_cast<std::int64_t>(candidates_.size()) > kept) {
    std::nth_element(candidates_.begin(), candidates_.begin() + kept, candidates_.end(), kMoreProbable);
    candidates_.resize(static_cast<std::size_t>(kept));
  }
}

// Sorts only the candidates that the mass needs, usually a few dozen of a large vocabulary: a histogram of the mass by
// distance from the best token says where to cut.
void TokenDraw::keep_top_p(float top) {
  constexpr std::size_t kBins = 512;
  constexpr double kBinsPerUnit = 8;  // 512 bins reach e^-64 of the best
  const auto bin_of = [&](float logit) {
    const double distance = (static_cast<double>(top) - static_cast<double>(logit)) / how_.temperature;
    return static_cast<std::size_t>(std::min(distance * kBinsPerUnit, static_cast<double>(kBins - 1)));
  };
  double mass[kBins] = {};
  double total = 0;
  for (const Candidate& candidate : candidates_) {
    const double value = weight(candidate.logit, top);
    mass[bin_of(candidate.logit)] += value;
    total += value;
  }
  const double wanted = how_.top_p * total;
  std::size_t last = 0;
  for (double sum = mass[0]; sum < wanted && last + 1 < kBins; sum += mass[last]) ++last;
  std::erase_if(candidates_, [&](const Candidate& candidate) { return bin_of(candidate.logit) > last; });
  std::sort(candidates_.begin(), candidates_.end(), kMoreProbable);
  double sum = 0;
  for (std::size_t i = 0; i < candidates_.size(); ++i) {
    sum += weight(candidates_[i].logit, top);
    if (sum >= wanted) return candidates_.resize(i + 1);
  }
}

}  // namespace facet
