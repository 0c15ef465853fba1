#include "config/table_reader.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "config/schema.h"
#include "facet/base/text.h"

namespace facet::config {
namespace {

std::string found_text(const toml::node& node) {
  switch (node.type()) {
    case toml::node_type::table:
      return "a table";
    case toml::node_type::array:
      return node.is_array_of_tables() ? "an array of tables" : "an array";
    case toml::node_type::string:
      return "the string " + in_quotes(*node.value<std::string_view>());
    case toml::node_type::integer:
      return fmt::format("the integer {}", *node.value<std::int64_t>());
    case toml::node_type::floating_point:
      return fmt::format("the real number {}", *node.value<double>());
    case toml::node_type::boolean:
      return fmt::format("the boolean {}", *node.value<bool>());
    default:
      return "a date or time";
  }
}

// What makes a string unusable wherever it stands, or "".
std::string text_mistake(std::string_view text) {
  const std::size_t dollar = text.find("${");
  if (dollar != std::string_view::npos && text.find('}', dollar) != std::string_view::npos) {
    return fmt::format(
        "{}: environment variables are not supported in this file; write the value itself (relative paths are taken "
        "from the folder of this file), or let a script write the file",
        in_quotes(text));
  }
  const auto is_control = [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7F; };
  if (std::any_of(text.begin(), text.end(), is_control)) {
    return fmt::format("{} holds a control character; write a backslash as \\\\ or use a 'literal string'",
                       in_quotes(text));
  }
  return "";
}

}  // namespace

int line_of(const toml::node& node) {
  return std::max(1, static_cast<int>(node.source().begin.line));
}

TableReader::TableReader(Report& report, const toml::table& table, std::string path, std::string_view schema)
    : report_(&report), table_(&table), path_(std::move(path)) {
  const TableSchema& known = table_schema(schema);
  for (auto&& [key, node] : table) {
    if (std::find(known.keys.begin(), known.keys.end(), key.str()) != known.keys.end()) continue;
    const int line = std::max(1, static_cast<int>(key.source().begin.line));
    report_->add(line, path_of(key.str()), unknown_key_text(known, key.str(), node.is_table()));
  }
}

int TableReader::line() const {
  return config::line_of(*table_);
}

int TableReader::line_of(std::string_view key) const {
  const toml::node* node = find(key);
  return node != nullptr ? config::line_of(*node) : line();
}

std::string TableReader::path_of(std::string_view key) const {
  // A key can be a megabyte long; the message needs only its beginning.
  constexpr std::size_t kMaxShown = 120;
  const std::string shown = key.size() <= kMaxShown && key.find_first_of(" \t\n.") == std::string_view::npos
                                ? std::string(key)
                                : in_quotes(key);
  return path_.empty() ? shown : path_ + "." + shown;
}

void TableReader::error(std::string_view key, std::string_view text) const {
  report_->add(line_of(key), path_of(key), text);
}

void TableReader::type_error(const toml::node& node, const std::string& key_path, std::string_view wanted) const {
  report_->add(config::line_of(node), key_path, fmt::format("must be {}, found {}", wanted, found_text(node)));
}

std::optional<std::string> TableReader::checked_text(const toml::node& node, const std::string& key_path) const {
  const auto* value = node.as_string();
  if (value == nullptr) {
    type_error(node, key_path, "a string");
    return std::nullopt;
  }
  const std::string mistake = value->get().empty() ? "must not be empty" : text_mistake(value->get());
  if (mistake.empty()) return value->get();
  report_->add(config::line_of(node), key_path, mistake);
  return std::nullopt;
}

std::string TableReader::text(std::string_view key, std::string_view standard) const {
  const toml::node* node = find(key);
  if (node == nullptr) return std::string(standard);
  return checked_text(*node, path_of(key)).value_or(std::string(standard));
}

std::string TableReader::choice(std::string_view key, std::string_view standard,
                                const std::vector<std::string>& choices) const {
  std::string value = text(key, standard);
  if (std::find(choices.begin(), choices.end(), value) != choices.end()) return value;
  const std::string near = nearest_name(folded(value), choices);
  error(key, fmt::format("must be one of {}, found {}{}", joined(choices), in_quotes(value),
                         near.empty() ? "" : fmt::format("; did you mean '{}'?", near)));
  return std::string(standard);
}

std::int64_t TableReader::integer(std::string_view key, std::int64_t standard, std::int64_t min,
                                  std::int64_t max) const {
  const toml::node* node = find(key);
  if (node == nullptr) return standard;
  const auto* value = node->as_integer();
  if (value == nullptr) {
    type_error(*node, path_of(key), "an integer");
    return standard;
  }
  if (value->get() >= min && value->get() <= max) return value->get();
  const std::string range = max == std::numeric_limits<std::int64_t>::max() ? fmt::format("at least {}", min)
                                                                            : fmt::format("{} to {}", min, max);
  error(key, fmt::format("must be {}, found {}", range, value->get()));
  return standard;
}

std::vector<std::string> TableReader::texts(std::string_view key) const {
  std::vector<std::string> result;
  const toml::node* node = find(key);
  if (node == nullptr) return result;
  const toml::array* array = node->as_array();
  if (array == nullptr) {
    type_error(*node, path_of(key), "an array of strings");
    return result;
  }
  for (std::size_t i = 0; i < array->size(); ++i) {
    if (auto text = checked_text((*array)[i], fmt::format("{}[{}]", path_of(key), i))) result.push_back(*text);
  }
  return result;
}

std::vector<OptionEntry> TableReader::options(std::string_view key) const {
  std::vector<OptionEntry> result;
  const toml::node* node = find(key);
  if (node == nullptr) return result;
  const toml::table* table = node->as_table();
  if (table == nullptr) {
    type_error(*node, path_of(key), "a table of options");
    return result;
  }
  const std::string base = path_of(key) + ".";
  for (auto&& [name, value] : *table) {
    OptionEntry entry{std::string(name.str()), false, config::line_of(value), base + std::string(name.str())};
    if (const auto* boolean = value.as_boolean()) {
      entry.value = boolean->get();
    } else if (const auto* integer = value.as_integer()) {
      entry.value = integer->get();
    } else if (const auto* real = value.as_floating_point()) {
      if (std::isnan(real->get())) report_->add(entry.line, entry.key_path, "nan is not a value of an option");
      entry.value = real->get();
    } else if (const auto* text = value.as_string()) {
      // An option may be an empty text, unlike a path or a name.
      const std::string mistake = text_mistake(text->get());
      if (!mistake.empty()) report_->add(entry.line, entry.key_path, mistake);
      entry.value = text->get();
    } else {
      type_error(value, entry.key_path, "a boolean, integer, real number or string");
      continue;
    }
    result.push_back(std::move(entry));
  }
  return result;
}

std::optional<TableReader> TableReader::table(std::string_view key, std::string_view schema) const {
  const toml::node* node = find(key);
  if (node == nullptr) return std::nullopt;
  const std::string key_path = path_of(key);
  if (node->is_table()) return TableReader(*report_, *node->as_table(), key_path, schema);
  type_error(*node, key_path, fmt::format("a table, written [{}]", key_path));
  return std::nullopt;
}

std::vector<TableReader> TableReader::tables(std::string_view key, std::string_view schema) const {
  std::vector<TableReader> result;
  const toml::node* node = find(key);
  if (node == nullptr) return result;
  const std::string wanted = fmt::format("an array of tables, each written [[{}]]", path_of(key));
  const toml::array* array = node->as_array();
  if (array == nullptr) {
    type_error(*node, path_of(key), wanted);
    return result;
  }
  for (std::size_t i = 0; i < array->size(); ++i) {
    const toml::node& element = (*array)[i];
    const std::string path = fmt::format("{}[{}]", path_of(key), i);
    if (element.is_table()) {
      result.emplace_back(*report_, *element.as_table(), path, schema);
    } else {
      type_error(element, path, wanted);
    }
  }
  return result;
}

}  // namespace facet::config
