// Right values from the model's own library in fp32, as tests/data/reference holds them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "facet/checkpoint/safetensors.h"

namespace facet::test {

using Ids = std::vector<std::int32_t>;

std::filesystem::path reference_file(const std::string& name);
// The bf16 checkpoint that the repository carries.
std::filesystem::path embedded_checkpoint();
// A checkpoint of $FACET_REFERENCE_DIR/models (by default the folder 'shared' beside the sources); nothing when absent.
std::optional<std::filesystem::path> reference_checkpoint(const std::string& name);
// Why a test of an absent one skips, and what to do about it.
std::string skip_reason(const std::string& checkpoint);

// One JSON array of ids a line.
std::vector<Ids> read_id_lines(const std::filesystem::path& file);

struct NllReference {
  double mean = 0;                        // over all predictions
  std::map<std::size_t, double> buckets;  // by length of the sequence
  std::vector<double> sequences;          // means, in the order of eval_tokens.jsonl
};
// `section` of nll_reference.json: "draft.fp32" is the 5m checkpoint, "tiny.fp32" the 22m one.
NllReference nll_reference(const std::string& section);

struct GreedyReference {
  std::vector<Ids> prompts, greedy;
  std::vector<std::vector<double>> top2_gap;  // of each greedy id
};
GreedyReference greedy_reference(const std::string& section);

// Values of a F32 or I32 tensor; throws when it is absent or of another type.
std::vector<float> float_values(const SafetensorsFile& file, const std::string& name);
Ids id_values(const SafetensorsFile& file, const std::string& name);

}  // namespace facet::test
