// facet quantize: a bf16 checkpoint to INT4 in compressed-tensors layout.
#include "quantize_weight.h"

#include <csignal>

#include "common.h"
#include "facet/base/log.h"
#include "facet/base/text.h"
#include "request_file.h"

namespace facet::cli {
namespace {

struct QuantizeOptions {
  std::string in, out, method = "rtn", scales = "max", head = "bf16";
  std::int64_t group = 128;
  bool asymmetric = false;
  std::vector<std::string> exclude;
};

void quantize(const QuantizeOptions& options, const GlobalOptions& global) {
  // Past the limit on file sizes a write then fails with an error, and the partial folder is removed.
  std::signal(SIGXFSZ, SIG_IGN);
  const bool search = options.scales == "search";
  QuantizeJob job;
  job.in = options.in;
  job.out = options.out;
  job.linear = {4, !options.asymmetric, options.group};
  if (options.head == "int4") job.head = QuantizationScheme{4, true, 128};
  if (options.head == "int8") job.head = QuantizationScheme{8, true, 128};
  job.exclude = options.exclude;
  job.quantize = [search](const DenseMatrix& matrix, const QuantizationScheme& scheme) {
    return quantize_matrix(matrix, scheme, search);
  };
  job.metadata = {{"quantizer", "facet " FACET_VERSION}, {"method", options.method}, {"scales", options.scales}};
  Progress progress("quantizing");
  const QuantizeReport report = quantize_checkpoint(job, [&](const QuantizeProgress& step) {
    progress.update(static_cast<std::size_t>(step.done), static_cast<std::size_t>(step.total));
  });
  if (global.json) {
    print_json({{"out", options.out},
                {"quantized", report.quantized},
                {"copied_tensors", report.copied},
                {"bytes_in", report.bytes_in},
                {"bytes_out", report.bytes_out}});
    return;
  }
  fmt::print("{}: {} modules quantized to int4 g{} {}, {} tensors copied, {} -> {}\n", options.out,
             report.quantized.size(), options.group, options.asymmetric ? "asymmetric" : "symmetric", report.copied,
             format_bytes(report.bytes_in), format_bytes(report.bytes_out));
}

}  // namespace

void add_quantize(CLI::App& app, GlobalOptions& global) {
  CLI::App* command = app.add_subcommand("quantize", "Turn a bf16 checkpoint into INT4");
  auto options = std::make_shared<QuantizeOptions>();
  command->add_option("--in", options->in, "Folder of the bf16 checkpoint")->required();
  command->add_option("--out", options->out, "Folder to create; it appears only when complete")
      ->required()
      ->check(not_empty());
  command->add_option("--method", options->method, "rtn: round to nearest")
      ->check(CLI::IsMember({"rtn"}))
      ->capture_default_str();
  command
      ->add_option("--scales", options->scales, "max: from the largest weight of a group; search: least squared error")
      ->check(CLI::IsMember({"max", "search"}))
      ->capture_default_str();
  command->add_option("--group", options->group, "Inputs that share a scale")
      ->check(CLI::IsMember({32, 64, 128}))
      ->capture_default_str();
  command->add_flag("--asym", options->asymmetric, "A zero point for each group");
  command->add_option("--head", options->head, "Format of the shared embedding and output head")
      ->check(CLI::IsMember({"bf16", "int8", "int4"}))
      ->capture_default_str();
  command->add_option("--exclude", options->exclude, "Glob over module names that stay bf16; may be repeated");
  add_global_options(*command, global);
  command->callback([options, &global] {
    set_log_level(parse_log_level(global.log_level));
    quantize(*options, global);
  });
}

}  // namespace facet::cli
