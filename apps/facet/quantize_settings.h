// What `facet quantize` was asked to do.
#pragma once

#include "common.h"
#include "facet/checkpoint/quantized_writer.h"
#include "facet/quantizer/gptq.h"

namespace facet::cli {

struct QuantizeSettings {
  std::string in, out;
  std::string method = "rtn";                 // rtn | gptq
  std::string scales;                         // max | search | hessian; empty: max for rtn, hessian for gptq
  std::string order;                          // natural | activation; empty: activation
  std::string head = "bf16";                  // bf16 | int8 | int4
  std::string format = "compressed-tensors";  // compressed-tensors | gptq
  std::int64_t group = 128;
  bool asymmetric = false;
  double damping = 0.01;
  int refinements = 3;
  double correction = 0.5;
  std::string calibration;
  std::int64_t samples = 128, length = 2048;
  std::vector<std::string> exclude;
  std::string evaluate;
  bool resume = false, dry_run = false;
  std::int64_t threads = 0;
  std::string device = "auto";  // auto | cpu | cuda

  bool gptq() const { return method == "gptq"; }
  // Layers are fed with calibration samples: GPTQ, and scales that are weighted by the inputs.
  bool calibrated() const { return gptq() || scales == "hessian"; }
};

// Fills in what depends on the method, and checks what options cannot say one by one. Throws Error(usage).
void complete(QuantizeSettings& settings);
quantizer::GptqOptions gptq_options(const QuantizeSettings& settings, const QuantizationScheme& scheme);
QuantizeJob checkpoint_job(const QuantizeSettings& settings);
// Everything that decides the result, for the report and to recognise an interrupted run.
Json settings_json(const QuantizeSettings& settings);

}  // namespace facet::cli
