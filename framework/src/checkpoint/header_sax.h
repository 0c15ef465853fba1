// Strict reader of the JSON header of a safetensors file: the schema is fixed, so nothing is built in memory but the
// entries, and nesting, duplicates and numbers are judged while reading.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

namespace facet::checkpoint_detail {

// One entry as written; what it means is checked later.
struct RawEntry {
  std::string name;
  std::string type;
  std::vector<std::uint64_t> shape;
  std::vector<std::uint64_t> offsets;
  bool has_type = false, has_shape = false, has_offsets = false;
};

// Longest part of a name from a file that an error shows.
std::string shown(const std::string& name);

class HeaderSax : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit HeaderSax(std::string file) : file_(std::move(file)) {}

  std::vector<RawEntry> entries;
  std::map<std::string, std::string> metadata;

  bool null() override;
  bool boolean(bool value) override;
  bool number_integer(number_integer_t value) override;
  bool number_unsigned(number_unsigned_t value) override;
  bool number_float(number_float_t value, const string_t& text) override;
  bool string(string_t& value) override;
  bool binary(binary_t& value) override;
  bool start_object(std::size_t elements) override;
  bool key(string_t& value) override;
  bool end_object() override;
  bool start_array(std::size_t elements) override;
  bool end_array() override;
  bool parse_error(std::size_t position, const std::string& token, const nlohmann::json::exception& error) override;

 private:
  // top: between entries; entry: inside one tensor; meta: inside __metadata__; list: inside shape or data_offsets.
  enum class Place { start, top, entry, meta, list, done };

  [[noreturn]] void fail(const std::string& what) const;
  [[noreturn]] void wrong_value(const char* kind) const;

  std::string file_;
  Place place_ = Place::start;
  std::string key_;           // of the innermost object
  bool in_metadata_ = false;  // the pending top-level key is __metadata__
  RawEntry entry_;
  std::set<std::string> names_;
};

}  // namespace facet::checkpoint_detail
