// The text of a configuration, for tests that build many that differ in one word.
#pragma once

#include <filesystem>
#include <string>

#include "facet/config/config.h"

namespace facet::test {

struct PipelineConfig {
  std::filesystem::path model;
  std::string device = "cpu";
  std::string linear = "dense";
  std::string dense = "dense";  // what serves bf16 matrices where `linear` does not
  std::string linear_to_8;      // another plugin for steps of up to 8 rows; empty: none
  std::string linear_to_64;     // another plugin for steps of up to 64 rows; empty: none
  std::string attention = "flash";
  std::string sliding = "static", global = "static";  // cache policies
  std::string storage = "f32";                        // of both
  std::string scheduler = "continuous";
  std::string head = "checkpoint";
  std::int64_t max_sequences = 1;
  std::int64_t max_context = 512;
  std::int64_t max_step_tokens = 512;
  std::int64_t prefill_chunk = 0;  // 0: max_step_tokens
  std::int64_t threads = 0;
  std::string kv_form = "auto";

  std::string to_toml() const;
  Config to_config() const;
};

}  // namespace facet::test
