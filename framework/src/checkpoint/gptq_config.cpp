#include "gptq_config.h"

#include <algorithm>
#include <optional>

#include "module_patterns.h"

namespace facet {
namespace {

// Order matters: the first rule that matches decides.
using json = nlohmann::ordered_json;

const json* present(const json& object, const char* key) {
  const auto found = object.find(key);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

// What "" and "dynamic.<pattern>." have in common. Fields that are absent keep what `settings` holds.
void read_module_fields(const json& object, const std::string& where, GptqModuleSettings& settings,
                        Problems& problems) {
  if (const json* bits = present(object, "bits")) {
    if (*bits != 4) {
      problems.add("{}bits is {}, supported is 4 for GPTQ; quantize to 4 bits, or to 8 in compressed-tensors layout",
                   where, bits->dump());
    }
    settings.scheme.bits = 4;
  }
  if (const json* size = present(object, "group_size")) {
    if (!size->is_number_integer() || (size->get<std::int64_t>() != -1 && size->get<std::int64_t>() <= 0)) {
      problems.add("{}group_size is {}, it must be a positive whole number or -1", where, size->dump());
    } else {
      settings.scheme.group_size = size->get<std::int64_t>();
    }
  }
  if (const json* symmetric = present(object, "sym")) {
    if (symmetric->is_boolean()) {
      settings.scheme.symmetric = symmetric->get<bool>();
    } else {
      problems.add("{}sym must be true or false, found {}", where, symmetric->dump());
    }
  }
  if (const json* order = present(object, "desc_act")) {
    if (order->is_boolean()) {
      settings.activation_order = order->get<bool>();
    } else {
      problems.add("{}desc_act must be true or false, found {}", where, order->dump());
    }
  }
  if (present(object, "adapter") != nullptr) {
    problems.add("{}adapter: weights with an adapter beside them are not supported; merge it into the weights", where);
  }
}

// "checkpoint_format" and, since 2025, "format" name the same thing.
std::optional<std::string> read_format(const json& object, const std::string& where, Problems& problems) {
  std::optional<std::string> format;
  for (const char* key : {"checkpoint_format", "format"}) {
    const json* value = present(object, key);
    if (value == nullptr) continue;
    const std::string text = value->is_string() ? value->get<std::string>() : value->dump();
    if (text != "gptq" && text != "gptq_v2") {
      problems.add(
          "{}{} is '{}', supported are 'gptq' (zero points stored minus one) and 'gptq_v2' (as they are); convert the "
          "checkpoint to one of them",
          where, key, text);
    } else if (format && *format != text) {
      problems.add("{}checkpoint_format is '{}' but format is '{}'; they must be equal", where, *format, text);
    }
    if (!format) format = text;
  }
  return format;
}

void check_storage_fields(const json& object, Problems& problems) {
  if (const json* marlin = present(object, "is_marlin_format"); marlin != nullptr && *marlin != false)
    problems.add("is_marlin_format is {}: codes in the order of one kernel are not supported; save as 'gptq'",
                 marlin->dump());
  if (const json* words = present(object, "pack_dtype"); words != nullptr && *words != "int32")
    problems.add("pack_dtype is {}, supported is \"int32\"", words->dump());
  if (const json* rotation = present(object, "rotation"); rotation != nullptr && *rotation != false)
    problems.add("rotation is {}: weights stored in a rotated basis are not supported", rotation->dump());
}

void read_rules(const json& dynamic, GptqSettings& settings, Problems& problems) {
  if (!dynamic.is_object()) {
    // A list or false stands for "no rules" in some files.
    if (!dynamic.empty() && dynamic != false)
      problems.add("dynamic must be an object from patterns to settings, found {}", dynamic.dump());
    return;
  }
  for (const auto& [written, overrides] : dynamic.items()) {
    const std::string where = "dynamic." + written + ".";
    GptqSettings::Rule rule{written, written, settings.base};
    if (written.starts_with("-:") || written.starts_with("+:")) rule.pattern = written.substr(2);
    checkpoint_detail::check_pattern(rule.pattern, "dynamic", written, problems);
    rule.settings.excluded = written.starts_with("-:");
    if (!overrides.is_object()) {
      problems.add("dynamic.{} must be an object, found {}", written, overrides.dump());
      continue;
    }
    read_module_fields(overrides, where, rule.settings, problems);
    const std::optional<std::string> format = read_format(overrides, where, problems);
    if (format && *format != to_string(settings.zeros))
      problems.add("{}format is '{}' where the checkpoint has '{}'; modules of both kinds are not supported", where,
                   *format, to_string(settings.zeros));
    settings.rules.push_back(std::move(rule));
  }
}

// {"meta": {"quantizer": ["gptqmodel:5.0.0"]}} or one text.
bool written_by_gptqmodel(const json& object) {
  const json* meta = present(object, "meta");
  const json* quantizer = meta != nullptr && meta->is_object() ? present(*meta, "quantizer") : nullptr;
  if (quantizer == nullptr) return false;
  const json list = quantizer->is_array() ? *quantizer : json::array({*quantizer});
  return std::any_of(list.begin(), list.end(), [](const json& name) {
    return name.is_string() && name.get<std::string>().starts_with("gptqmodel");
  });
}

}  // namespace

const char* to_string(GptqZeros zeros) noexcept {
  return zeros == GptqZeros::minus_one ? "gptq" : "gptq_v2";
}

GptqModuleSettings GptqSettings::settings_for(std::string_view module) const {
  const std::vector<std::string> names = checkpoint_detail::spellings(module);
  for (const Rule& rule : rules) {
    if (checkpoint_detail::matches_start(names, rule.pattern)) return rule.settings;
  }
  return base;
}

namespace checkpoint_detail {

GptqSettings read_gptq_settings(const json& object, const std::string& file, Problems& problems) {
  GptqSettings settings;
  settings.file = file;
  // Writers disagree about the defaults of these two, so there is none here.
  for (const char* key : {"bits", "group_size"}) {
    if (present(object, key) == nullptr) problems.add("{} is missing", key);
  }
  read_module_fields(object, "", settings.base, problems);
  // Files from before the marker store zero points minus one.
  if (read_format(object, "", problems).value_or("gptq") == "gptq_v2") settings.zeros = GptqZeros::plain;
  settings.whole_word_zeros = written_by_gptqmodel(object);
  if (const json* head = present(object, "lm_head")) {
    if (head->is_boolean()) {
      settings.packed_head = head->get<bool>();
    } else {
      problems.add("lm_head must be true or false, found {}", head->dump());
    }
  }
  check_storage_fields(object, problems);
  if (const json* dynamic = present(object, "dynamic")) read_rules(*dynamic, settings, problems);
  return settings;
}

}  // namespace checkpoint_detail
}  // namespace facet
