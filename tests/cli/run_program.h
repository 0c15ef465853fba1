// Runs the built program as a child process, as a script would.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

namespace facet::cli_test {

namespace fs = std::filesystem;
using Json = nlohmann::json;

struct ProgramResult {
  int exit_code = -1;  // -1 when a signal ended it
  int signal = 0;
  std::string out, err;
  std::int64_t peak_rss_bytes = 0;

  // Both streams, for messages of failed assertions.
  std::string text() const;
  // All of stdout as one JSON document; a failed assertion and null when it is not.
  Json json() const;
};

// bin/facet of the build tree.
fs::path facet_program();
// `arguments` without the program. Empty folder: the working directory of the test. `environment`: added variables.
ProgramResult run_facet(const std::vector<std::string>& arguments, const fs::path& folder = {},
                        const std::vector<std::pair<std::string, std::string>>& environment = {});

}  // namespace facet::cli_test
