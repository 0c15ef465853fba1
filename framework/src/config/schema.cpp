#include "config/schema.h"

#include <fmt/format.h>

#include <algorithm>

#include "config/report.h"
#include "facet/base/error.h"
#include "facet/base/text.h"

namespace facet::config {
namespace {

bool has_key(const TableSchema& schema, std::string_view key) {
  return std::find(schema.keys.begin(), schema.keys.end(), key) != schema.keys.end();
}

const std::vector<TableSchema>& table_schemas() {
  static const std::vector<TableSchema> schemas = {
      {"", {"model", "engine", "linear", "attention", "kv_cache", "scheduler", "plugins"}},
      {"model", {"path", "synthetic", "head"}},
      {"engine",
       {"device", "max_sequences", "max_context", "max_step_tokens", "prefill_chunk", "threads", "cpu_isa", "kv_form"}},
      {"linear", {"plugin", "options", "fallback", "rules", "tuning"}},
      {"linear.rules", {"layers", "min_rows", "max_rows", "plugin", "options", "fallback"}},
      {"attention", {"plugin", "options", "fallback", "sliding", "global"}},
      {"attention.sliding", {"plugin", "options", "fallback"}},
      {"attention.global", {"plugin", "options", "fallback"}},
      {"kv_cache", {"plugin", "options", "fallback", "sliding", "global"}},
      {"kv_cache.sliding", {"plugin", "options", "fallback"}},
      {"kv_cache.global", {"plugin", "options", "fallback"}},
      {"scheduler", {"plugin", "options"}},
      {"plugins", {"path"}},
      {"tuning file", {"tuning", "linear"}, true},
      {"tuning", {"device", "model", "facet_version", "max_step_tokens", "repeat", "rules"}, true},
      {"tuned linear", {"rules"}, true},
  };
  return schemas;
}

std::string table_title(const TableSchema& schema, std::string_view key) {
  if (schema.name.empty()) return fmt::format("the top level, as [{}]", key);
  return schema.name == "linear.rules" ? "[[linear.rules]]" : fmt::format("[{}]", schema.name);
}

// "[engine]" or "[attention.sliding] or [attention.global]": the tables other than `schema` that know the key.
std::string owners(const TableSchema& schema, std::string_view key) {
  std::string text;
  for (const TableSchema& other : table_schemas()) {
    if (&other == &schema || other.tuning || !has_key(other, key)) continue;
    text += (text.empty() ? "" : " or ") + table_title(other, key);
  }
  return text;
}

std::string nearest_elsewhere(const TableSchema& schema, std::string_view key) {
  std::vector<std::string> names;
  for (const TableSchema& other : table_schemas()) {
    if (&other != &schema && !other.tuning) names.insert(names.end(), other.keys.begin(), other.keys.end());
  }
  return nearest_name(key, names);
}

}  // namespace

const TableSchema& table_schema(std::string_view name) {
  for (const TableSchema& schema : table_schemas()) {
    if (schema.name == name) return schema;
  }
  throw_error(ErrorKind::config, "no schema for table [{}]: the reader asks for a table it does not describe", name);
}

std::string unknown_key_text(const TableSchema& schema, std::string_view key, bool is_table) {
  const std::string what = is_table && schema.name.empty() ? fmt::format("unknown table {}", in_quotes(key))
                                                           : "unknown key " + in_quotes(key);
  const std::string fold = folded(key);
  if (schema.name == "scheduler" && fold == "fallback")
    return fmt::format("{}; a scheduler takes every model, so none is tried after it: leave the key out", what);
  if (has_key(schema, fold)) {
    return fmt::format("{}; names are lower case with '_' and case-sensitive: write '{}'", what, fold);
  }
  if (const std::string others = owners(schema, fold); !others.empty() && !schema.tuning) {
    const std::string spelling = fold == key ? "" : fmt::format(", spelt '{}'", fold);
    return fmt::format("{}; it belongs in {}{}", what, others, spelling);
  }
  if (const std::string near = nearest_name(fold, schema.keys); !near.empty()) {
    return fmt::format("{}; did you mean '{}'?", what, near);
  }
  if (const std::string near = nearest_elsewhere(schema, fold); !near.empty() && !schema.tuning) {
    return fmt::format("{}; did you mean '{}', which belongs in {}? Known here: {}", what, near, owners(schema, near),
                       joined(schema.keys));
  }
  const std::string hint =
      has_key(schema, "options") ? "; an option of the plugin goes into the table 'options' beside it" : "";
  return fmt::format("{}; known here: {}{}", what, joined(schema.keys), hint);
}

}  // namespace facet::config
