#include <array>
#include <cmath>
#include <nlohmann/json.hpp>

#include "facet/base/text.h"
#include "facet/sdk/host.h"
#include "facet/sdk/numeric.h"
#include "gemma4/weight_source.h"

namespace facet::gemma4 {
namespace {

constexpr std::int64_t kGroup = 128;
// A weight has a standard deviation of about 0.02, as in trained models: codes of 2.5 times this.
constexpr float kScale = 0.008f;
constexpr double kCodeDeviation = 2.5;

std::uint64_t mix(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

// Code for each of 256 equally likely bytes, so that codes have a Gaussian shape around 8.
std::array<std::uint8_t, 256> gaussian_codes() {
  std::array<std::uint8_t, 256> codes{};
  double below = 0;
  int code = 0;
  for (int byte = 0; byte < 256; ++byte) {
    const double share = (byte + 0.5) / 256;
    // Cumulative share of codes up to `code`: the normal distribution cut at code + 1/2.
    while (code < 15 && (below = 0.5 * std::erfc(-(code - 8 + 0.5) / kCodeDeviation / std::sqrt(2.0))) < share) ++code;
    codes[static_cast<std::size_t>(byte)] = static_cast<std::uint8_t>(code);
  }
  return codes;
}

// Layers, widths and heads of the 12B as its public config.json has them.
std::string config_12b() {
  nlohmann::json config = {{"model_type", "gemma4_text"},
                           {"vocab_size", 262144},
                           {"hidden_size", 3840},
                           {"intermediate_size", 15360},
                           {"num_hidden_layers", 48},
                           {"num_attention_heads", 16},
                           {"num_key_value_heads", 8},
                           {"head_dim", 256},
                           {"global_head_dim", 512},
                           {"num_global_key_value_heads", 1},
                           {"attention_k_eq_v", true},
                           {"sliding_window", 1024},
                           {"max_position_embeddings", 262144},
                           {"rms_norm_eps", 1e-6},
                           {"final_logit_softcapping", 30.0},
                           {"hidden_activation", "gelu_pytorch_tanh"},
                           {"tie_word_embeddings", true}};
  for (int layer = 0; layer < 48; ++layer)
    config["layer_types"].push_back(layer % 6 == 5 ? "full_attention" : "sliding_attention");
  config["rope_parameters"] = {
      {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 10000.0}}},
      {"full_attention", {{"rope_type", "proportional"}, {"rope_theta", 1000000.0}, {"partial_rotary_factor", 0.25}}}};
  config["quantization_config"] = {
      {"quant_method", "compressed-tensors"},
      {"format", "pack-quantized"},
      {"config_groups",
       {{"group_0",
         {{"targets", {"Linear", "Embedding"}},
          {"weights",
           {{"num_bits", 4}, {"type", "int"}, {"symmetric", true}, {"strategy", "group"}, {"group_size", kGroup}}}}}}}};
  return config.dump();
}

class SyntheticSource final : public WeightSource {
 public:
  SyntheticSource(std::string name, std::uint64_t seed, const abi::HostTable& host)
      : name_(std::move(name)), seed_(seed), host_(&host), codes_(gaussian_codes()) {
    facts_.model = parse_config(config_12b(), name_);
    facts_.quantization = parse_quantization_config(config_12b(), name_);
    facts_.prefix = "model.";
  }

  std::string description() const override { return fmt::format("synthetic {}, seed {}", name_, seed_); }
  std::uint64_t content_hash() const override { return mix(seed_ ^ fnv1a(name_.data(), name_.size())); }
  CheckpointFacts facts() const override { return facts_; }

  // Norms of one keep every layer's input at the size the weights are made for.
  std::vector<float> vector(const std::string& /*name*/, std::int64_t count) const override {
    return std::vector<float>(static_cast<std::size_t>(count), 1.0f);
  }

  LinearWeight linear(const std::string& module, std::int64_t out_features, std::int64_t in_features) const override {
    const std::int64_t row_bytes = sdk::ceil_div(in_features, std::int64_t{8}) * 4,
                       groups = sdk::ceil_div(in_features, kGroup);
    std::vector<std::uint64_t> values(
        static_cast<std::size_t>(sdk::ceil_div(out_features * row_bytes, std::int64_t{8})));
    std::vector<float> scales(static_cast<std::size_t>(out_features * groups));
    const std::uint64_t stream = mix(seed_ ^ fnv1a(module.data(), module.size()));
    host_.parallel_for(
        static_cast<std::int64_t>(values.size()), 1 << 16, [&](std::int64_t begin, std::int64_t end, std::uint32_t) {
          for (std::int64_t i = begin; i < end; ++i)
            values[static_cast<std::size_t>(i)] = sixteen_codes(stream + 2 * static_cast<std::uint64_t>(i));
        });
    for (std::size_t i = 0; i < scales.size(); ++i) {
      // Between 3/4 and 5/4, exact in bf16 as in files.
      const double share = static_cast<double>(mix(stream ^ (i << 20)) >> 40) / (1 << 24);
      scales[i] = sdk::bf16_to_float(sdk::float_to_bf16(kScale * static_cast<float>(0.75 + 0.5 * share)));
    }
    return LinearWeight::from_parts(abi::WeightFormat::int4, out_features, in_features, kGroup, values.data(),
                                    row_bytes, std::move(scales), {});
  }

 private:
  std::uint64_t sixteen_codes(std::uint64_t counter) const {
    std::uint64_t packed = 0;
    for (int half = 0; half < 2; ++half) {
      std::uint64_t random = mix(counter + static_cast<std::uint64_t>(half));
      for (int i = 0; i < 8; ++i, random >>= 8)
        packed |= static_cast<std::uint64_t>(codes_[random & 255]) << (32 * half + 4 * i);
    }
    return packed;
  }

  std::string name_;
  std::uint64_t seed_;
  sdk::Host host_;
  std::array<std::uint8_t, 256> codes_;
  CheckpointFacts facts_;
};

}  // namespace

std::vector<std::string> synthetic_models() {
  return {"gemma4-12b"};
}

std::unique_ptr<WeightSource> make_synthetic_source(const std::string& name, std::uint64_t seed,
                                                    const abi::HostTable& host) {
  for (const std::string& known : synthetic_models()) {
    if (known == name) return std::make_unique<SyntheticSource>(name, seed, host);
  }
  const std::string nearest = nearest_name(name, synthetic_models());
  throw_error(ErrorKind::config, "model.synthetic: '{}' is unknown; known is gemma4-12b{}", name,
              nearest.empty() ? "" : fmt::format("; did you mean '{}'?", nearest));
}

}  // namespace facet::gemma4
