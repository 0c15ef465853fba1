// From a dense checkpoint to a quantized one, in compressed-tensors "pack-quantized" layout or as GPTQ.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "facet/checkpoint/checkpoint.h"
#include "facet/checkpoint/quantization_config.h"
#include "facet/checkpoint/writer.h"

namespace facet {

// A quantized matrix [out, in] in the canonical form of abi::WeightView: value = (code - zero) * scale.
struct QuantizedMatrix {
  // [out, ceil(in * bits / 32)]: code of input i in bits bits*(i % per_word) of word i / per_word; codes past `in` mean
  // zero.
  std::vector<std::uint32_t> words;
  std::vector<float> scales;        // [out, groups]; every value exact in bf16
  std::vector<std::uint8_t> zeros;  // [out, groups] zero codes; empty when symmetric (8 or 128)
};

// A dense matrix [out, in], row-major without gaps, aligned to its element; borrowed for the call.
struct DenseMatrix {
  std::string name;  // of the tensor, for errors
  TensorType type;   // bf16 or f32
  const void* values;
  std::int64_t out_features;
  std::int64_t in_features;
};

using QuantizeMatrix = std::function<QuantizedMatrix(const DenseMatrix& matrix, const QuantizationScheme& scheme)>;

// Declares the tensors of one module with `writer`: weight_packed, weight_scale (BF16), weight_shape (I64) and, when
// asymmetric, weight_zero_point packed along out. `produce` is called once, when the first of them is written; parts
// are freed once written. Errors (from write()): Error(run) when the sizes of what `produce` returns do not fit the
// scheme, or a scale is not exact in bf16.
void add_quantized_module(SafetensorsWriter& writer, const std::string& module, const QuantizationScheme& scheme,
                          std::int64_t out_features, std::int64_t in_features,
                          std::function<QuantizedMatrix()> produce);

// `config_json` with a "quantization_config" of these groups and ignored modules; what else it holds is kept in order.
// Throws Error(checkpoint) when it is not a JSON object or already has one.
std::string with_quantization_config(const std::string& config_json, const std::vector<QuantizationGroup>& groups,
                                     const std::vector<std::string>& ignore);
// `config_json` with "tie_word_embeddings" false, at the top and, where there is one, in "text_config": the files hold
// an output head of their own. Throws Error(checkpoint) when it is not a JSON object.
std::string with_own_head(const std::string& config_json);

enum class CheckpointFormat { compressed_tensors, gptq };

struct QuantizeJob {
  std::filesystem::path in;
  std::filesystem::path out;                                       // must not exist
  CheckpointFormat format = CheckpointFormat::compressed_tensors;  // gptq: 4 bits, no embedding; see gptq_writer.h
  QuantizationScheme linear;                                       // for every *_proj matrix of the text model's layers
  // For the output head; absent: it stays as it is. A source with a tensor lm_head.weight gets it quantized. Otherwise
  // the head is the embedding's table: with `own_head` the table stays for looking up and a quantized lm_head is
  // written beside it, without `own_head` the table itself is quantized.
  std::optional<QuantizationScheme> head;
  bool own_head = false;
  std::vector<std::string> exclude;             // glob patterns of module names that stay as they are
  QuantizeMatrix quantize;                      // must not be empty
  std::map<std::string, std::string> metadata;  // into the file's __metadata__: method, versions
  bool replace_partial = false;                 // an interrupted run's partial folder is deleted instead of refused
  // More text files of the folder, by name; called when the weights are written. May be empty.
  std::function<std::map<std::string, std::string>()> side_files;
};

// Modules (names without ".weight") that quantize_checkpoint would quantize, with their scheme; kHeadModule among them
// when the head is or becomes one of its own, and the matrix passed to job.quantize then has that name. Throws
// Error(checkpoint) when the source is quantized already or a pattern of `exclude` matches no module.
std::map<std::string, QuantizationScheme> modules_to_quantize(const QuantizeJob& job, const Checkpoint& source);
// `out` as a plain name, "out/" as "out" and no "/./": the names of what lies beside the folder are made from it.
std::filesystem::path output_name(const std::filesystem::path& out);
// The same. Throws what quantize_checkpoint throws when it cannot be created.
std::filesystem::path require_free_output(const std::filesystem::path& out, bool replace_partial = false);
// Values of a mapped matrix tensor, through a copy in `storage` where the file does not align them. Throws
// Error(checkpoint) for types other than BF16 and F32.
DenseMatrix dense_matrix(const Tensor& tensor, std::vector<float>& storage);

struct QuantizeProgress {
  std::string module;     // being quantized
  std::int64_t done = 0;  // modules finished
  std::int64_t total = 0;
};

struct QuantizeReport {
  std::vector<std::string> quantized;  // modules, in the order of the file
  std::int64_t copied = 0;             // tensors
  std::uint64_t bytes_in = 0;          // of all tensors
  std::uint64_t bytes_out = 0;         // of the written file
};

// Streams job.in into job.out: every tensor is copied or quantized, one module in memory at a time (its scales until
// the end of the file). Writes model.safetensors, config.json with the quantization_config, and copies tokenizer and
// generation files. Built in "<out>.partial" and renamed when complete; on failure the partial folder is removed.
// Throws Error(run) when out or its partial folder exists or cannot be written; Error(checkpoint) when the source
// cannot be used, is quantized already, or a pattern of `exclude` matches no module. What job.quantize throws passes
// through.
QuantizeReport quantize_checkpoint(const QuantizeJob& job,
                                   const std::function<void(const QuantizeProgress&)>& progress = {});

}  // namespace facet
