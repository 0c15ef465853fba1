#include "quantize_job.h"

#include <fstream>

namespace facet::cli {

Json job_identity(const Workbench& bench, const CalibrationWalk& walk, const Sequences& samples) {
  // Devices differ in rounding: a run goes on where it began.
  Json job = {{"facet_version", FACET_VERSION},
              {"device", bench.engine().description()},
              {"forward", walk.device()},
              {"checkpoint", fmt::format("{:016x}", bench.checkpoint.content_hash())}};
  job.update(settings_json(bench.settings));
  // Options first, so that a difference is named by the one that made it. The ids say what the samples were, under
  // whichever name.
  job.erase("calibration");
  job["calibration_ids"] = fmt::format("{:016x}", fingerprint(samples));
  return job;
}

std::optional<Json> completed(const QuantizeSettings& settings) {
  const std::filesystem::path out = settings.out;
  const std::optional<Json> before = WorkFolder::interrupted(out);
  if (!settings.resume || !before || !std::filesystem::exists(out / kReportFile)) return std::nullopt;
  std::ifstream in(out / kReportFile);
  Json report = Json::parse(in, nullptr, false);
  if (!report.is_object() || !report.contains("job") || WorkFolder::first_difference(report["job"], *before))
    return std::nullopt;
  Json before_settings = report["settings"], now = settings_json(settings);
  for (Json* side : {&before_settings, &now}) side->erase("calibration");  // the same samples may have another name
  WorkFolder::require_same(out, before_settings, now);
  std::filesystem::remove_all(WorkFolder::path_of(out));
  return report;
}

void require_no_work(const QuantizeSettings& settings) {
  const std::optional<Json> before = WorkFolder::interrupted(settings.out);
  if (!before) return;
  throw_error(ErrorKind::usage,
              "--out {}: an interrupted run of --method {} left its work in {}; go on with its options and "
              "--resume, choose another --out, or delete it",
              settings.out, before->value("method", "gptq"), WorkFolder::path_of(settings.out).string());
}

}  // namespace facet::cli
