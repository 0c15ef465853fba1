// The plan of a pipeline as JSON.
#pragma once

#include "common.h"

namespace facet::cli {

// {config_file, checkpoint, device, threads, cpu_features,
//  linear: [{layer, module, weights, out_features, in_features, choices: [{min_rows, max_rows, plugin, version, file,
//    options, rule, layout, packed_bytes, workspace_bytes, refused: [{plugin, reasons}], others?}]}],
//  attention: [{group, layers, plugin, ..., layout, workspace_bytes, fused, refused, others?}],
//  kv_cache: [{group, layers, plugin, ..., layout, window, kv_heads, head_dim, pool_bytes, sequences_that_fit,
//    refused}],
//  scheduler: {plugin, version, file, options, rule}}
// With `ask_all`, "others" holds what every other installed plugin of the kind says to the same problem, with its
// default options: [{plugin, takes_it, reasons}].
Json explain_json(gemma4::Pipeline& pipeline, bool ask_all);

}  // namespace facet::cli
