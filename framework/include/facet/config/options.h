// Plugin options of the file held against the schema the plugin publishes.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "facet/abi/plugin.h"
#include "facet/base/error.h"
#include "facet/config/config.h"

namespace facet {

// Typed values for abi::PluginDescriptor::create, in the order of the schema, defaults filled in. Owns its texts.
class OptionSet {
 public:
  explicit OptionSet(const abi::PluginDescriptor& descriptor);  // all defaults
  OptionSet(OptionSet&&) noexcept = default;
  OptionSet& operator=(OptionSet&&) noexcept = default;

  // Valid as long as the set lives.
  abi::Options view() const;
  // "block_tokens=64 dtype=bf16", in the order of the schema.
  std::string to_string() const;
  std::vector<OptionEntry> entries() const;

 private:
  friend OptionSet resolve_options(const abi::PluginDescriptor&, const PluginChoice&, const std::string&, Problems&);
  const abi::PluginDescriptor* descriptor_;
  std::vector<std::unique_ptr<std::string>> texts_;
  std::vector<abi::OptionValue> values_;
};

// Adds one line to `problems` for every unknown name (with the nearest known one), wrong type, value out of range or
// not among the choices; returns the values found (defaults where something was wrong).
OptionSet resolve_options(const abi::PluginDescriptor& descriptor, const PluginChoice& choice, const std::string& file,
                          Problems& problems);

// Markdown table of a schema: name, type, default, range or choices, unit, text. For README and `facet plugins
// describe`.
std::string option_table(const abi::PluginDescriptor& descriptor);

}  // namespace facet
