#include "quantize_job.h"

#include "facet/base/file.h"

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
  if (!settings.resume || !before) return std::nullopt;
  const std::optional<std::string> text = read_file_if_there(out / kReportFile, ErrorKind::checkpoint);
  if (!text) return std::nullopt;
  Json report = Json::parse(*text, nullptr, false);
  if (!report.is_object() || !report.contains("job") || WorkFolder::first_difference(report["job"], *before))
    return std::nullopt;
  Json before_settings = report["settings"], now = settings_json(settings);
  for (Json* side : {&before_settings, &now}) side->erase("calibration");  // the same samples may have another name
  WorkFolder::require_same(out, before_settings, now);
  std::filesystem::remove_all(WorkFolder::path_of(out));
  return report;
}

void require_something_to_resume(const QuantizeSettings& settings) {
  if (!settings.resume) return;
  const std::filesystem::path work = WorkFolder::path_of(settings.out), partial = settings.out + ".partial";
  std::error_code ignored;
  if (std::filesystem::exists(work, ignored) || std::filesystem::exists(partial, ignored)) return;
  throw_error(
      ErrorKind::usage,
      "--resume: there is nothing to go on with: an interrupted run for --out {} would have left {} or {}; give "
      "the --out of that run, or leave --resume out to begin anew",
      settings.out, work.string(), partial.string());
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
