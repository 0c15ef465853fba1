// Typed access to one TOML table. Every mistake goes to the report and the default value comes back, so that one pass
// over the file finds all of them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "config/report.h"
#include "config/toml_library.h"
#include "facet/config/config.h"

namespace facet::config {

class TableReader {
 public:
  // `path` is the key path of the table, `schema` names its keys (schema.h). Reports every unknown key at once.
  TableReader(Report& report, const toml::table& table, std::string path, std::string_view schema);

  const std::string& path() const { return path_; }
  int line() const;
  bool has(std::string_view key) const { return find(key) != nullptr; }
  // Line of the key's value, or of the table when the key is absent.
  int line_of(std::string_view key) const;
  std::string path_of(std::string_view key) const;
  void error(std::string_view key, std::string_view text) const;

  // Strings must not be empty, hold control characters or a ${...}.
  std::string text(std::string_view key, std::string_view standard) const;
  std::string choice(std::string_view key, std::string_view standard, const std::vector<std::string>& choices) const;
  std::int64_t integer(std::string_view key, std::int64_t standard, std::int64_t min, std::int64_t max) const;
  std::vector<std::string> texts(std::string_view key) const;
  std::vector<OptionEntry> options(std::string_view key) const;
  // Absent or not a table: nullopt (the latter is reported).
  std::optional<TableReader> table(std::string_view key, std::string_view schema) const;
  // The elements of [[key]].
  std::vector<TableReader> tables(std::string_view key, std::string_view schema) const;

 private:
  const toml::node* find(std::string_view key) const { return table_->get(key); }
  std::optional<std::string> checked_text(const toml::node& node, const std::string& key_path) const;
  void type_error(const toml::node& node, const std::string& key_path, std::string_view wanted) const;

  Report* report_;
  const toml::table* table_;
  std::string path_;
};

// Line of a node in the file, at least 1.
int line_of(const toml::node& node);

}  // namespace facet::config
