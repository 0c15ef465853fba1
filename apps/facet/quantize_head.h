// The embedding and the output head: one table that both share, or a quantized head beside the embedding.
#pragma once

#include "quantize_bench.h"
#include "quantize_work.h"

namespace facet::cli {

// Names of the work folder's parts.
inline constexpr const char* kTablePart = "table";
inline constexpr const char* kHeadPart = "head";

// The embedding as readers of the result will have it: quantized when the settings say so, and saved in `work`.
LinearWeight quantize_table(const Workbench& bench, WorkFolder* work);
// The output head as readers of the result will have it. One of its own that is quantized is taken from `work`, or,
// without one, rounded to nearest.
LinearWeight finished_head(const Workbench& bench, const WorkFolder* work);

}  // namespace facet::cli
