#include "quantize_settings.h"

namespace facet::cli {

void complete(QuantizeSettings& settings) {
  if (settings.scales.empty()) settings.scales = settings.gptq() ? "hessian" : "max";
  if (settings.order.empty()) settings.order = "activation";
  if (settings.format == "gptq" && settings.head != "bf16") {
    throw_error(
        ErrorKind::usage,
        "--format gptq: GPTQ files hold the embedding and the tied head as bf16, but --head is {}; use --head bf16 "
        "or --format compressed-tensors",
        settings.head);
  }
  if (settings.calibrated() && settings.calibration.empty()) {
    throw_error(ErrorKind::usage, "--{} needs inputs of the layers; give --calibration FILE.jsonl or FILE.txt",
                settings.gptq() ? "method gptq" : "scales hessian");
  }
  if (!settings.calibrated() && !settings.calibration.empty()) {
    throw_error(ErrorKind::usage,
                "--calibration: --method rtn with --scales {} uses none; choose --method gptq or "
                "--scales hessian, or leave it out",
                settings.scales);
  }
}

quantizer::GptqOptions gptq_options(const QuantizeSettings& settings) {
  quantizer::GptqOptions options;
  options.symmetric = !settings.asymmetric;
  options.group_size = settings.group;
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
  if (settings.head == "int4") job.head = QuantizationScheme{4, true, 128};
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
