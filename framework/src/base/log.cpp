#include "facet/base/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include "facet/base/error.h"

namespace facet {
namespace {

spdlog::logger& logger() {
  // stderr, because stdout carries one JSON document or the generated text and nothing else.
  static const std::shared_ptr<spdlog::logger> instance = [] {
    auto created = std::make_shared<spdlog::logger>("facet", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
    created->set_pattern("%^%l%$ %v");
    created->set_level(spdlog::level::warn);
    return created;
  }();
  return *instance;
}

spdlog::level::level_enum to_spdlog(LogLevel level) {
  switch (level) {
    case LogLevel::trace:
      return spdlog::level::trace;
    case LogLevel::debug:
      return spdlog::level::debug;
    case LogLevel::info:
      return spdlog::level::info;
    case LogLevel::warn:
      return spdlog::level::warn;
    case LogLevel::error:
      return spdlog::level::err;
    case LogLevel::off:
      return spdlog::level::off;
  }
  return spdlog::level::warn;
}

}  // namespace

void set_log_level(LogLevel level) {
  logger().set_level(to_spdlog(level));
}

LogLevel log_level() {
  const spdlog::level::level_enum level = logger().level();
  if (level == spdlog::level::off) return LogLevel::off;
  return level == spdlog::level::err || level == spdlog::level::critical ? LogLevel::error
                                                                         : static_cast<LogLevel>(level);
}

LogLevel parse_log_level(std::string_view name) {
  static constexpr const char* kNames[] = {"trace", "debug", "info", "warn", "error", "off"};
  for (int i = 0; i < 6; ++i) {
    if (name == kNames[i]) return static_cast<LogLevel>(i);
  }
  throw_error(ErrorKind::usage, "unknown log level '{}'; use trace, debug, info, warn, error or off", name);
}

void log_text(LogLevel level, std::string_view text) {
  logger().log(to_spdlog(level), "{}", text);
}

}  // namespace facet
