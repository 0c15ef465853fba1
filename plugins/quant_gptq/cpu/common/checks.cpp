#include "common/checks.h"

#include <algorithm>

#include "facet/sdk/numeric.h"

namespace facet::linear {

void check_common(const abi::LinearProblem& problem, const Formats& formats, sdk::Reasons& reasons) {
  reasons.require(problem.device == abi::Device::cpu, "device is ", sdk::to_string(problem.device),
                  ", this plugin runs on cpu");
  const bool known = (problem.weight == abi::WeightFormat::bf16 && formats.bf16) ||
                     (problem.weight == abi::WeightFormat::int8 && formats.int8) ||
                     (problem.weight == abi::WeightFormat::int4 && formats.int4);
  reasons.require(known, "weights are ", sdk::to_string(problem.weight), ", this plugin takes",
                  formats.bf16 ? " bf16" : "", formats.int8 ? " int8" : "", formats.int4 ? " int4" : "");
  reasons.require(problem.input == abi::DType::f32, "input is ", sdk::to_string(problem.input),
                  ", this plugin takes f32");
  reasons.require(problem.output == abi::DType::f32, "output is ", sdk::to_string(problem.output),
                  ", this plugin writes f32");
  reasons.require(problem.in_features >= 1, "in_features is ", problem.in_features, ", it must be at least 1");
  reasons.require(problem.out_features >= 1, "out_features is ", problem.out_features, ", it must be at least 1");
  reasons.require(problem.min_rows >= 1 && problem.min_rows <= problem.max_rows, "rows ", problem.min_rows, "..",
                  problem.max_rows, " is not a range of at least 1 row");
  if (problem.weight == abi::WeightFormat::int8 || problem.weight == abi::WeightFormat::int4)
    reasons.require(problem.group_size >= 1, "group_size is ", problem.group_size, ", it must be at least 1");
}

void check_group(const abi::LinearProblem& problem, sdk::Reasons& reasons) {
  reasons.require(problem.group_size >= problem.in_features || problem.group_size % 32 == 0, "group_size ",
                  problem.group_size, " is neither a multiple of 32 nor the whole row of ", problem.in_features);
}

void check_run(const abi::LinearArgs& args, std::int64_t max_rows, std::uint64_t workspace_bytes) {
  if (args.rows > max_rows)
    sdk::fail(abi::Status::invalid_argument, "a run of ", args.rows, " rows on a plan for at most ", max_rows);
  if (args.workspace.bytes < workspace_bytes)
    sdk::fail(abi::Status::invalid_argument, "workspace of ", args.workspace.bytes, " bytes, the plan needs ",
              workspace_bytes);
}

void check_parts(const abi::LinearProblem& problem, std::span<const abi::WeightView> parts) {
  std::int64_t rows = 0;
  for (const abi::WeightView& part : parts) {
    if (part.format != problem.weight)
      sdk::fail(abi::Status::invalid_argument, "a part is ", sdk::to_string(part.format), ", the plan is for ",
                sdk::to_string(problem.weight));
    if (part.in_features != problem.in_features)
      sdk::fail(abi::Status::invalid_argument, "a part has in_features ", part.in_features, ", the plan is for ",
                problem.in_features);
    if (part.format != abi::WeightFormat::bf16) {
      // Group sizes that cover the whole row mean the same whatever their number.
      const auto groups = [&](std::int64_t size) { return sdk::ceil_div(problem.in_features, size); };
      if (part.group_size < 1 ||
          (part.group_size != problem.group_size && (groups(part.group_size) != 1 || groups(problem.group_size) != 1)))
        sdk::fail(abi::Status::invalid_argument, "a part has group_size ", part.group_size, ", the plan is for ",
                  problem.group_size);
      if (problem.symmetric != 0 && part.zeros != nullptr)
        sdk::fail(abi::Status::invalid_argument, "a part has zero points, the plan is for symmetric weights");
    }
    rows += part.out_features;
  }
  if (rows != problem.out_features)
    sdk::fail(abi::Status::invalid_argument, "the parts have ", rows, " out_features together, the plan is for ",
              problem.out_features);
}

std::int64_t loop_grain(std::int64_t item_bytes, std::int64_t rows) {
  // 48 KiB are 2 to 3 us at the 20 GB/s of one core; each further row of x adds about a quarter of that.
  constexpr std::int64_t kPieceBytes = 48 << 10;
  const std::int64_t work = item_bytes * (rows + 3) / 4;
  return std::max<std::int64_t>(1, sdk::ceil_div(kPieceBytes, std::max<std::int64_t>(1, work)));
}

}  // namespace facet::linear
