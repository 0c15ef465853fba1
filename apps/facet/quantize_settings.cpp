#include "quantize_settings.h"

#include <cmath>

namespace facet::cli {

void complete(QuantizeSettings& settings) {
  settings.out = output_name(settings.out).string();
  for (const auto& [name, value] :
       {std::pair("damping", settings.damping), std::pair("correction", settings.correction)}) {
    if (std::isfinite(value)) continue;  // a range check takes NaN
    throw_error(ErrorKind::usage, "--{}: {} is no number; give one such as {}", name, value,
                std::string_view(name) == "damping" ? 0.01 : 0.5);
  }
  if (settings.scales.empty()) settings.scales = settings.gptq() ? "hessian" : "max";
  if (settings.order.empty()) settings.order = "activation";
  if (settings.format == "gptq" && settings.head == "int8") {
    throw_error(ErrorKind::usage,
                "--format gptq: GPTQ files have 4 bits and the embedding as bf16, but --head is int8; use --head int4 "
                "or bf16, or --format compressed-tensors");
  }
  if (settings.calibrated() && settings.calibration.empty()) {
    throw_error(ErrorKind::usage, "--{} needs inputs of the layers; give --calibration FILE.jsonl or FILE.txt",
                settings.gptq() ? "method gptq" : "scales hessian");
  }
  if (!settings.calibrated() && settings.device == "cuda") {
    throw_error(ErrorKind::usage,
                "--device cuda: --method rtn with --scales {} has no work for a GPU; choose --method gptq or --scales "
                "hessian, or leave --device out",
                settings.scales);
  }
  if (!settings.calibrated() && !settings.calibration.empty()) {
    throw_error(ErrorKind::usage,
                "--calibration: --method rtn with --scales {} uses none; choose --method gptq or "
                "--scales hessian, or leave it out",
                settings.scales);
  }
}

quantizer::GptqOptions gptq_options(const QuantizeSettings& settings, const QuantizationScheme& scheme) {
  quantizer::GptqOptions options;
  options.bits = scheme.bits;
  options.symmetric = scheme.symmetric;
  options.group_size = scheme.group_size;
  options.scales = settings.scales == "max"      ? quantizer::ScaleChoice::largest
                   : settings.scales == "search" ? quantizer::ScaleChoice::search
                                                 : quantizer::ScaleChoice::hessian;
  options.order = settings.order == "natural" ? quantizer::ColumnOrder::natural : quantizer::ColumnOrder::activation;
  options.feedback = settings.gptq();
  options.damping = settings.damping;
  options.refinements = settings.gptq() ? settings.refinements : 0;
  options.correction = settings.gptq() ? settings.correction : 0;
  return options;
}

QuantizeJob checkpoint_job(const QuantizeSettings& settings) {
  QuantizeJob job;
  job.in = settings.in;
  job.out = settings.out;
  job.linear = {4, !settings.asymmetric, settings.group};
  // An int4 table would cost as much by looking up as by multiplying, so it stays and the head becomes one of its own;
  // an int8 table costs nothing that matters and halves the memory.
  if (settings.head == "int4") job.head = QuantizationScheme{4, true, 128};
  job.own_head = settings.head == "int4";
  if (settings.head == "int8") job.head = QuantizationScheme{8, true, 128};
  job.format = settings.format == "gptq" ? CheckpointFormat::gptq : CheckpointFormat::compressed_tensors;
  job.exclude = settings.exclude;
  job.metadata = {{"quantizer", "facet " FACET_VERSION}, {"method", settings.method}, {"scales", settings.scales}};
  job.replace_partial = settings.resume;
  return job;
}

Json settings_json(const QuantizeSettings& settings) {
  Json json = {{"method", settings.method},   {"bits", 4},
               {"group", settings.group},     {"symmetric", !settings.asymmetric},
               {"scales", settings.scales},   {"head", settings.head},
               {"exclude", settings.exclude}, {"format", settings.format}};
  if (!settings.calibrated()) return json;
  json["calibration"] = settings.calibration;
  json["samples"] = settings.samples;
  json["length"] = settings.length;
  if (!settings.gptq()) return json;
  json["damping"] = settings.damping;
  json["order"] = settings.order;
  json["refinements"] = settings.refinements;
  json["correction"] = settings.correction;
  return json;
}

}  // namespace facet::cli
