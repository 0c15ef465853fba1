// facet quantize: a bf16 checkpoint to INT4 in compressed-tensors layout.
#include "facet/base/limits.h"
#include "facet/base/log.h"
#include "facet/base/text.h"
#include "quantize_evaluate.h"
#include "quantize_head.h"
#include "quantize_job.h"
#include "quantize_layers.h"
#include "quantize_memory.h"
#include "quantize_weight.h"
#include "request_file.h"

namespace facet::cli {
namespace {

using Clock = std::chrono::steady_clock;

Json new_report(const QuantizeSettings& settings) {
  return {{"facet_version", FACET_VERSION}, {"in", settings.in}, {"settings", settings_json(settings)}};
}

void print_memory(const QuantizeMemory& memory) {
  fmt::print(stderr,
             "quantize: needs {} beside the mapped checkpoint: activations {}, inputs {}, Hessian and factor {}, a "
             "layer {}, output head {}\n",
             format_bytes(memory.total()), format_bytes(memory.activations), format_bytes(memory.batch),
             format_bytes(memory.hessian), format_bytes(memory.matrices), format_bytes(memory.head));
  if (memory.device > 0) fmt::print(stderr, "quantize: and {} of the GPU's memory\n", format_bytes(memory.device));
}

// Round to nearest without calibration: every module by itself, straight into the file.
QuantizeReport write_nearest(const QuantizeSettings& settings, QuantizeJob& job, Json& report) {
  const bool search = settings.scales == "search";
  job.quantize = [search](const DenseMatrix& matrix, const QuantizationScheme& scheme) {
    return quantize_matrix(matrix, scheme, search);
  };
  if (!settings.evaluate.empty()) {
    const Workbench bench(settings);
    const MatrixOf matrix_of = [&](std::size_t, const gemma4::StageModule& module, std::int64_t in_features) {
      const LinearWeight original = bench.original(module.name, module.out_features, in_features);
      const QuantizationScheme* scheme = bench.scheme(module.name);
      if (scheme == nullptr) return bench.floats(original);
      return bench.floats(bench.weight_of(
          quantize_matrix({module.name, TensorType::bf16, original.view().values, module.out_features, in_features},
                          *scheme, search),
          *scheme, module.out_features, in_features));
    };
    report["evaluation"] = evaluate_quantized(bench, read_evaluation(settings, bench.facts.model),
                                              quantize_table(bench, nullptr), finished_head(bench, nullptr), matrix_of);
  }
  Progress progress("quantizing", std::chrono::seconds(10));
  return quantize_checkpoint(job, [&](const QuantizeProgress& step) {
    progress.update(static_cast<std::size_t>(step.done), static_cast<std::size_t>(step.total));
  });
}

void add_layer_reports(const Workbench& bench, const WorkFolder& work, Json& report) {
  report["layers"] = Json::array();
  for (std::size_t layer = 0; layer < bench.facts.model.layers.size(); ++layer)
    report["layers"].push_back(work.report(layer_part(layer)));
  for (const char* part : {kTablePart, kHeadPart}) {
    if (work.has(part)) report["head"] = work.report(part);
  }
}

QuantizeReport write_calibrated(const QuantizeSettings& settings, QuantizeJob& job, Json& report) {
  const Workbench bench(settings);
  const Sequences samples = read_samples(settings);
  require_fit(samples, settings.calibration, bench.facts.model);
  const Sequences evaluation = settings.evaluate.empty() ? Sequences() : read_evaluation(settings, bench.facts.model);
  const std::unique_ptr<CalibrationWalk> walk = make_walk(bench, samples);
  const QuantizeMemory memory = plan_memory(bench, *walk);
  report["device"] = bench.engine().description();
  report["forward"] = walk->device();
  report["memory"] = memory_json(memory);
  report["calibration_tokens"] = token_count(samples);
  print_memory(memory);
  const Json identity = job_identity(bench, *walk, samples);
  if (settings.dry_run) {
    const std::optional<Json> before = WorkFolder::interrupted(job.out);
    if (before && settings.resume) WorkFolder::require_same(job.out, *before, identity);
    return {};
  }
  fmt::print(stderr, "quantize: on {}; finished layers stay in {}.work, and --resume goes on there\n",
             bench.engine().description(), settings.out);
  WorkFolder work(job.out, identity, settings.resume);
  report["job"] = identity;
  const auto start = Clock::now();
  {
    QuantizeProgressLine progress(total_cost(bench, token_count(samples)));
    quantize_layers(bench, samples, *walk, work, progress);
  }
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  report["seconds"] = seconds;
  // Share of the threads' time that went into matrix products and factorisations; on a GPU, of all time, into those of
  // the quantizer.
  report["blas_share"] =
      static_cast<double>(bench.blas().nanoseconds()) / 1e9 / (seconds * static_cast<double>(bench.workers()));
  report["threads"] = bench.workers();
  if (const double device = bench.engine().blas_seconds(); device > 0) {
    report["device_blas_seconds"] = device;
    report["blas_share"] = device / seconds;
  }
  add_layer_reports(bench, work, report);
  if (!evaluation.empty()) {
    report["evaluation"] =
        evaluate_quantized(bench, evaluation, quantize_table(bench, &work), finished_head(bench, &work),
                           [&](std::size_t layer, const gemma4::StageModule& module, std::int64_t in_features) {
                             return finished_matrix(bench, work, layer, module, in_features);
                           });
  }
  std::map<std::string, std::string> part_of = {{bench.embedding(), kTablePart}, {kHeadModule, kHeadPart}};
  for (std::size_t layer = 0; layer < bench.facts.model.layers.size(); ++layer) {
    for (const gemma4::LayerStage stage : gemma4::kLayerStages) {
      for (const gemma4::StageModule& module : stage_modules(bench.facts, layer, stage).modules)
        part_of[module.name] = layer_part(layer);
    }
  }
  job.quantize = [&](const DenseMatrix& matrix, const QuantizationScheme&) {
    const std::string module = matrix.name.substr(0, matrix.name.rfind(".weight"));
    return work.load(part_of.at(module), module);
  };
  say_phase(fmt::format("quantize: writing {}", settings.out));
  QuantizeReport written = quantize_checkpoint(job);
  work.remove();
  return written;
}

void print_summary(const QuantizeSettings& settings, const QuantizeReport& written, const Json& report) {
  fmt::print("{}: {} modules quantized to int4 g{} {}, {} tensors copied, {} -> {}\n", settings.out,
             written.quantized.size(), settings.group, settings.asymmetric ? "asymmetric" : "symmetric", written.copied,
             format_bytes(written.bytes_in), format_bytes(written.bytes_out));
  if (report.contains("seconds"))
    fmt::print("  layers took {:.1f} s, {:.0f} % of it in BLAS\n", report["seconds"].get<double>(),
               100 * report["blas_share"].get<double>());
  if (!report.contains("evaluation")) return;
  const Json& quality = report["evaluation"];
  fmt::print("  NLL {:.6f}, {:+.6f} against the source, perplexity {:.4f}, mean KL {:.6f}, equal top token {:.2f} %\n",
             quality["nll"].get<double>(), quality["nll"].get<double>() - quality["source_nll"].get<double>(),
             quality["perplexity"].get<double>(), quality["mean_kl"].get<double>(),
             100 * quality["top1_agreement"].get<double>());
}

void quantize(QuantizeSettings settings, const GlobalOptions& global) {
  complete(settings);
  if (const std::optional<Json> report = completed(settings)) {
    fmt::print(stderr, "quantize: {} is complete\n", settings.out);
    if (global.json) print_json(*report);
    return;
  }
  if (!settings.calibrated()) require_no_work(settings);
  QuantizeJob job = checkpoint_job(settings);
  job.out = require_free_output(settings.out, settings.resume);
  require_something_to_resume(settings);
  Json report = new_report(settings);
  job.side_files = [&] { return std::map<std::string, std::string>{{kReportFile, json_text(report) + "\n"}}; };
  if (settings.dry_run && !settings.calibrated()) {
    throw_error(ErrorKind::usage,
                "--dry-run: only --method gptq and --scales hessian have a plan; rounding to nearest "
                "holds one matrix at a time");
  }
  const QuantizeReport written =
      settings.calibrated() ? write_calibrated(settings, job, report) : write_nearest(settings, job, report);
  if (global.json) {
    report["out"] = settings.out;
    report["quantized"] = written.quantized;
    report["copied_tensors"] = written.copied;
    report["bytes_in"] = written.bytes_in;
    report["bytes_out"] = written.bytes_out;
    print_json(report);
  } else if (!settings.dry_run) {
    print_summary(settings, written, report);
  }
}

// Options that the method does not read are mistakes.
void require_use(const CLI::App& command, const QuantizeSettings& settings) {
  const auto require = [&](bool used, const char* option, const char* cure) {
    if (used || command.count(option) == 0) return;
    throw_error(ErrorKind::usage, "{}: --method {} does not use it; {}, or leave it out", option, settings.method,
                cure);
  };
  for (const char* option : {"--damping", "--order", "--refinements", "--correction"})
    require(settings.gptq(), option, "choose --method gptq");
  for (const char* option : {"--samples", "--length"})
    require(settings.calibrated(), option, "choose --method gptq or --scales hessian");
}

void add_method_options(CLI::App& command, QuantizeSettings& settings) {
  command.add_option("--method", settings.method, "rtn: round to nearest; gptq: with error feedback")
      ->check(CLI::IsMember({"rtn", "gptq"}))
      ->capture_default_str();
  command
      .add_option("--scales", settings.scales,
                  "max: from the largest weight of a group; search: least squared error; hessian: least squared error, "
                  "weighted by the inputs (default: max for rtn, hessian for gptq)")
      ->check(CLI::IsMember({"max", "search", "hessian"}));
  command.add_option("--group", settings.group, "Inputs that share a scale")
      ->check(CLI::IsMember({32, 64, 128}))
      ->capture_default_str();
  command.add_flag("--asym", settings.asymmetric, "A zero point for each group");
  command
      .add_option("--head", settings.head,
                  "Format of the output head. int8: of the table that it shares with the embedding; int4: of a head of "
                  "its own, the embedding stays as it is")
      ->check(CLI::IsMember({"bf16", "int8", "int4"}))
      ->capture_default_str();
  command.add_option("--format", settings.format, "Layout of the written files")
      ->check(CLI::IsMember({"compressed-tensors", "gptq"}))
      ->capture_default_str();
  command.add_option("--exclude", settings.exclude, "Glob over module names that stay bf16; may be repeated");
  command.add_option("--damping", settings.damping, "gptq: share of the mean that is added to the Hessian's diagonal")
      ->check(CLI::Range(0.0, 100.0))
      ->capture_default_str();
  command
      .add_option("--order", settings.order,
                  "gptq: natural, or activation: columns with large inputs first, scales fixed before (default)")
      ->check(CLI::IsMember({"natural", "activation"}));
  command
      .add_option("--refinements", settings.refinements,
                  "gptq: rounds of coordinate descent over codes and scales after the first pass")
      ->check(CLI::Range(0, 100))
      ->capture_default_str();
  command
      .add_option("--correction", settings.correction,
                  "gptq: share of the error of earlier layers that each layer makes up for; above 0 the original model "
                  "runs beside the quantized one")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
}

}  // namespace

void add_quantize(CLI::App& app, GlobalOptions& global) {
  CLI::App* command = app.add_subcommand("quantize", "Turn a bf16 checkpoint into INT4");
  auto settings = std::make_shared<QuantizeSettings>();
  command->add_option("--in", settings->in, "Folder of the bf16 checkpoint")->required()->check(not_empty());
  command->add_option("--out", settings->out, "Folder to create; it appears only when complete")
      ->required()
      ->check(not_empty());
  add_method_options(*command, *settings);
  command->add_option("--calibration", settings->calibration,
                      "Sample inputs: FILE.jsonl with one JSON array of token ids a line, or a text file");
  command->add_option("--samples", settings->samples, "Most samples of --calibration, spread over the file")
      ->transform(whole_number(1, 1 << 20))
      ->capture_default_str();
  command->add_option("--length", settings->length, "Most tokens of a sample")
      ->transform(whole_number(2, 1 << 20))
      ->capture_default_str();
  command->add_option("--evaluate", settings->evaluate,
                      "File with one JSON array of token ids a line: report NLL and KL against the source");
  command
      ->add_option(
          "--device", settings->device,
          "Where samples run, Hessians are made and matrices quantized; auto: a GPU when one works, else the CPU")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}))
      ->capture_default_str();
  command->add_option("--threads", settings->threads, "0: all")
      ->transform(whole_number(0, kMostThreads))
      ->capture_default_str();
  command->add_flag("--resume", settings->resume,
                    "Go on after an interruption, at the last whole layer; round to nearest starts over");
  command->add_flag("--dry-run", settings->dry_run, "Print the memory that is needed and stop");
  add_global_options(*command, global);
  command->callback([command, settings, &global] {
    set_log_level(parse_log_level(global.log_level));
    require_use(*command, *settings);
    quantize(*settings, global);
  });
}

}  // namespace facet::cli
