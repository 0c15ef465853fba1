#include "plugin_json.h"

#include "facet/sdk/text.h"

namespace facet::cli {
namespace {

struct Word {
  std::uint64_t bit;
  const char* text;
};
constexpr Word kFlags[] = {
    {abi::kGraphSafe, "graph_safe"},           {abi::kDeterministic, "deterministic"},
    {abi::kBatchInvariant, "batch_invariant"}, {abi::kNeedsPack, "needs_pack"},
    {abi::kRunReentrant, "run_reentrant"},     {abi::kPlansWithoutDevice, "plans_without_device"}};
constexpr Word kPhases[] = {{abi::kPrefill, "prefill"}, {abi::kDecode, "decode"}};
constexpr Word kDevices[] = {{static_cast<std::uint64_t>(abi::Device::cpu), "cpu"},
                             {static_cast<std::uint64_t>(abi::Device::cuda), "cuda"}};

template <std::size_t N>
Json words(std::uint64_t mask, const Word (&table)[N]) {
  Json list = Json::array();
  for (const Word& word : table) {
    if ((mask & word.bit) != 0) list.push_back(word.text);
  }
  return list;
}

Json option_json(const abi::OptionSpec& spec) {
  Json json = {{"name", spec.name}};
  switch (spec.type) {
    case abi::OptionType::boolean:
      json["type"] = "boolean";
      json["default"] = spec.default_integer != 0;
      break;
    case abi::OptionType::integer:
      json["type"] = "integer";
      json["default"] = spec.default_integer;
      json["min"] = spec.min_integer;
      json["max"] = spec.max_integer;
      break;
    case abi::OptionType::real:
      json["type"] = "real";
      json["default"] = spec.default_real;
      json["min"] = spec.min_real;
      json["max"] = spec.max_real;
      break;
    case abi::OptionType::text:
      json["type"] = "string";
      json["default"] = spec.default_text;
      break;
  }
  if (spec.choices != nullptr)
    json["choices"] = std::vector<std::string>(spec.choices, spec.choices + spec.choice_count);
  json["unit"] = spec.unit;
  json["summary"] = spec.summary;
  return json;
}

// A scheduler decides on the host which rows are computed, whatever computes them; its mask is not asked.
Json devices_json(const abi::PluginDescriptor& descriptor) {
  if (descriptor.kind == abi::PluginKind::scheduler) return Json::array({"any"});
  return words(descriptor.devices, kDevices);
}

}  // namespace

Json plugin_json(const LoadedPlugin& plugin) {
  const abi::PluginDescriptor& descriptor = *plugin.descriptor;
  return {{"kind", to_string(descriptor.kind)},
          {"name", descriptor.name},
          {"version", descriptor.version},
          {"summary", descriptor.summary},
          {"devices", devices_json(descriptor)},
          {"phases", words(descriptor.phases, kPhases)},
          {"flags", words(descriptor.flags, kFlags)},
          {"build", descriptor.build_signature},
          {"file", plugin.file.string()},
          {"file_hash", fmt::format("{:016x}", plugin.file_hash)}};
}

Json option_schema_json(const abi::PluginDescriptor& descriptor) {
  Json list = Json::array();
  for (std::uint32_t i = 0; i < descriptor.option_count; ++i) list.push_back(option_json(descriptor.options[i]));
  return list;
}

std::string joined(const Json& texts) {
  std::string text;
  for (const Json& word : texts) text += (text.empty() ? "" : " ") + word.get<std::string>();
  return text.empty() ? "-" : text;
}

}  // namespace facet::cli
