// What a plan says of itself, for `facet plan` and `facet explain`.
#pragma once

#include "common.h"

namespace facet::cli {

// Bytes by category, limits, and what the plan leaves out: {"total", "kv_per_sequence", "device_absent", "left_out",
// ...}.
Json plan_json(const gemma4::Pipeline& pipeline);

// [{"plugin", "reasons"}].
Json refusals_json(const std::vector<Refusal>& refused);

// Of abi::AttentionProblem::key_channels: "shared" or "full".
const char* kv_form_text(std::int64_t key_channels);
// By group of layers: the form of its cache, elements of a key and its value, and who refused the shared form.
Json kv_forms_json(const gemma4::Pipeline& pipeline);

// Null, or why the device of the configuration is not here: the plan is then what it would be on one.
Json absence_json(const gemma4::Pipeline& pipeline);
// Plugins that plan only on their device, which is not here: [{"kind", "plugin", "places", "leaves_out"}].
Json left_out_json(const gemma4::Pipeline& pipeline);
// The line that says so; nothing where the device is here. `what`: "planned".
void print_absence(const Json& document, const char* what);

}  // namespace facet::cli
