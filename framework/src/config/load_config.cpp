#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <system_error>

#include "facet/base/error.h"
#include "facet/config/config.h"

namespace facet {
namespace {

namespace fs = std::filesystem;

// A hand-written file has a few KiB. The limit keeps a checkpoint or a log given by mistake from being parsed.
constexpr std::size_t kMaxFileBytes = std::size_t{1} << 20;

std::string read_text(const fs::path& real, const std::string& name) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(real.c_str(), "rb"), &std::fclose);
  if (!file) throw_error(ErrorKind::config, "{}: cannot read the configuration: {}", name, std::strerror(errno));
  std::string text(kMaxFileBytes + 1, '\0');
  text.resize(std::fread(text.data(), 1, text.size(), file.get()));
  if (std::ferror(file.get()) != 0) {
    throw_error(ErrorKind::config, "{}: reading the configuration failed: {}", name, std::strerror(errno));
  }
  if (text.size() > kMaxFileBytes) {
    throw_error(ErrorKind::config,
                "{}: the file is larger than 1 MiB, the most a configuration may have; is it the right file?", name);
  }
  return text;
}

}  // namespace

Config load_config(const fs::path& file) {
  const std::string name = file.string();
  std::error_code failed;
  const fs::path real = fs::canonical(file, failed);
  if (failed) {
    std::error_code ignored;
    const fs::path looked = fs::absolute(file, ignored);
    throw_error(ErrorKind::config, "{}: cannot read the configuration: {} (looked at {})",
                name.empty() ? "(empty file name)" : name, failed.message(), looked.string());
  }
  if (fs::is_directory(real, failed)) {
    throw_error(ErrorKind::config, "{}: is a folder; name the TOML file in it", name);
  }
  // A pipe or a device has no folder that relative paths could be taken from, and may never end.
  if (!fs::is_regular_file(real, failed)) {
    throw_error(ErrorKind::config, "{}: is not a regular file; write the configuration to a file first", name);
  }
  Config config = parse_config(read_text(real, name), name, real.parent_path());
  config.file = real;
  return config;
}

}  // namespace facet
