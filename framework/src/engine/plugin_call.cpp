#include "facet/engine/plugin_call.h"

#include "facet/sdk/text.h"

namespace facet {

std::string describe(const LoadedPlugin& plugin) {
  return fmt::format("{} plugin '{}' {} ({})", to_string(plugin.descriptor->kind), plugin.descriptor->name,
                     plugin.descriptor->version, plugin.file.filename().string());
}

void check_call(abi::Status status, const LoadedPlugin& plugin, const char* operation, const SinkText& text,
                ErrorKind kind) {
  if (status == abi::Status::ok) return;
  throw_error(kind, "{} failed while {}: {}{}{}", describe(plugin), operation, sdk::to_string(status),
              text.empty() ? "" : ": ", text.text());
}

}  // namespace facet
