// Logging front: all of the framework and every plugin logs through here; the sink is stderr, so stdout stays free for
// results.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <utility>

namespace facet {

enum class LogLevel { trace, debug, info, warn, error, off };

// Sets the level of all messages; the default is warn. Thread-safe.
void set_log_level(LogLevel level);
LogLevel log_level();
// Parses "trace" .. "off"; throws Error(usage) that lists the names.
LogLevel parse_log_level(std::string_view name);
void log_text(LogLevel level, std::string_view text);

template <typename... Args>
void log(LogLevel level, fmt::format_string<Args...> format, Args&&... args) {
  if (level >= log_level()) log_text(level, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace facet
