// How a run of `facet quantize` recognises its own work, and what it finds of others.
#pragma once

#include "quantize_walk.h"
#include "quantize_work.h"

namespace facet::cli {

inline constexpr const char* kReportFile = "quantization_report.json";

// The job as the work folder and the report remember it.
Json job_identity(const Workbench& bench, const CalibrationWalk& walk, const Sequences& samples);

// The report of a run that was stopped between giving the output its name and deleting the work folder: nothing is left
// to do, and the work folder is deleted. Another result with the same name is not that run's, and its work stays.
// Throws Error(usage) when that run had other settings.
std::optional<Json> completed(const QuantizeSettings& settings);

// --resume where no interrupted run left anything is a mistyped --out, or hours that begin anew: Error(usage).
void require_something_to_resume(const QuantizeSettings& settings);

// Round to nearest leaves the work of another method alone: Error(usage) where there is any.
void require_no_work(const QuantizeSettings& settings);

}  // namespace facet::cli
