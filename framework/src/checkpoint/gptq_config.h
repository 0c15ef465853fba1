// The settings that GPTQ writers put into config.json or quantize_config.json.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "facet/base/error.h"
#include "facet/checkpoint/quantization_config.h"

namespace facet::checkpoint_detail {

// `object` is the quantization_config or the whole of quantize_config.json; `file` names it in errors.
GptqSettings read_gptq_settings(const nlohmann::ordered_json& object, const std::string& file, Problems& problems);

}  // namespace facet::checkpoint_detail
