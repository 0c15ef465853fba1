#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <system_error>

#include "config/tuning.h"
#include "facet/base/error.h"
#include "facet/base/text.h"
#include "facet/config/config.h"

namespace facet {
namespace {

namespace fs = std::filesystem;

// A hand-written file has a few KiB. The limit keeps a checkpoint or a log given by mistake from being parsed.
constexpr std::size_t kMaxFileBytes = std::size_t{1} << 20;

std::string read_text(const fs::path& real, const std::string& name, const char* what) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(real.c_str(), "rb"), &std::fclose);
  if (!file) throw_error(ErrorKind::config, "{}: cannot read the {}: {}", name, what, std::strerror(errno));
  std::string text(kMaxFileBytes + 1, '\0');
  text.resize(std::fread(text.data(), 1, text.size(), file.get()));
  if (std::ferror(file.get()) != 0) {
    throw_error(ErrorKind::config, "{}: reading the {} failed: {}", name, what, std::strerror(errno));
  }
  if (text.size() > kMaxFileBytes) {
    throw_error(ErrorKind::config, "{}: the file is larger than 1 MiB, the most a {} may have; is it the right file?",
                name, what);
  }
  return text;
}

// The regular file that `file` leads to.
fs::path real_file(const fs::path& file, const char* what) {
  const std::string name = file.string();
  std::error_code failed;
  fs::path real = fs::canonical(file, failed);
  if (failed) {
    std::error_code ignored;
    const fs::path looked = fs::absolute(file, ignored);
    throw_error(ErrorKind::config, "{}: cannot read the {}: {} (looked at {})",
                name.empty() ? "(empty file name)" : name, what, failed.message(), looked.string());
  }
  if (fs::is_directory(real, failed)) {
    throw_error(ErrorKind::config, "{}: is a folder; name the TOML file in it", name);
  }
  // A pipe or a device has no folder that relative paths could be taken from, and may never end.
  if (!fs::is_regular_file(real, failed)) {
    throw_error(ErrorKind::config, "{}: is not a regular file; write the {} to a file first", name, what);
  }
  return real;
}

void read_tuning(Config& config, const std::string& name) {
  try {
    const fs::path real = real_file(config.tuning.file, "tuning file");
    config::add_tuned_rules(read_text(real, config.tuning.file.string(), "tuning file"), config);
  } catch (Error& error) {
    error.add_context(fmt::format("{}:{}: linear.tuning", name, config.tuning.line));
    throw;
  }
}

}  // namespace

fs::path ModelConfig::real_path() const {
  std::error_code failed;
  fs::path real = fs::weakly_canonical(path, failed);
  return failed ? path : real;
}

Config load_config(const fs::path& file) {
  constexpr const char* kWhat = "configuration";
  const std::string name = file.string();
  const fs::path real = real_file(file, kWhat);
  Config config = parse_config(read_text(real, name, kWhat), name, real.parent_path());
  config.file = real;
  if (!config.tuning.file.empty()) read_tuning(config, name);
  return config;
}

}  // namespace facet
