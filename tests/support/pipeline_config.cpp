#include "pipeline_config.h"

#include <fmt/format.h>

namespace facet::test {

std::string PipelineConfig::to_toml() const {
  std::string text = fmt::format("[model]\npath = \"{}\"\nhead = \"{}\"\n\n", model.string(), head);
  text += fmt::format(
      "[engine]\ndevice = \"{}\"\nmax_sequences = {}\nmax_context = {}\nmax_step_tokens = {}\nprefill_chunk = {}\n"
      "threads = {}\nkv_form = \"{}\"\n\n",
      device, max_sequences, max_context, max_step_tokens, prefill_chunk, threads, kv_form);
  // INT4 kernels refuse the bf16 head of most checkpoints.
  const std::string fallback = linear == dense ? "" : fmt::format("fallback = [\"{}\"]\n", dense);
  text += fmt::format("[linear]\nplugin = \"{}\"\n{}\n", linear, fallback);
  const auto add_rule = [&](int max_rows, const std::string& plugin) {
    if (!plugin.empty())
      text += fmt::format("[[linear.rules]]\nmax_rows = {}\nplugin = \"{}\"\n{}\n", max_rows, plugin, fallback);
  };
  add_rule(8, linear_to_8);
  add_rule(64, linear_to_64);
  text += fmt::format("[attention]\nplugin = \"{}\"\n\n", attention);
  for (const auto& [group, policy] : {std::pair{"sliding", sliding}, std::pair{"global", global}}) {
    text += fmt::format("[kv_cache.{0}]\nplugin = \"{1}\"\n[kv_cache.{0}.options]\nstorage = \"{2}\"\n\n", group,
                        policy, storage);
  }
  text += fmt::format("[scheduler]\nplugin = \"{}\"\n\n[plugins]\npath = [\"{}/lib/facet/plugins\"]\n", scheduler,
                      FACET_BINARY_DIR);
  return text;
}

Config PipelineConfig::to_config() const {
  return parse_config(to_toml(), "test.toml", FACET_SOURCE_DIR);
}

}  // namespace facet::test
