// Which keys each table of the file may have, and what to say about any other.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace facet::config {

struct TableSchema {
  std::string name;  // "engine", "linear.rules"; "" is the file itself
  std::vector<std::string> keys;
  bool tuning = false;  // of a tuning file, which is no place for keys of a configuration
};

// The schema with that name; it must exist.
const TableSchema& table_schema(std::string_view name);
// "unknown key 'max_sequnces'; did you mean 'max_sequences'?", or where the key belongs, or what is known here.
std::string unknown_key_text(const TableSchema& schema, std::string_view key, bool is_table);

}  // namespace facet::config
