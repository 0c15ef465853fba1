// Checked access to a JSON document: every wrong or unknown field becomes an error that names file and field.
#pragma once

#include <simdjson.h>

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

namespace facet {

// A value and how it is reached, e.g. "model.merges[7]". Cheap to copy; lives as long as the parsed document.
// Every function throws Error(checkpoint) when the value is not what is asked for.
class JsonField {
 public:
  JsonField(simdjson::dom::element value, std::string file, std::string path)
      : value_(value), file_(std::move(file)), path_(std::move(path)) {}

  const std::string& path() const { return path_; }
  bool is_null() const { return value_.is_null(); }
  simdjson::dom::object object() const;
  simdjson::dom::array array() const;
  std::string_view text() const;
  bool boolean() const;
  // Refuses values below 0 and above 2^31 - 1.
  std::int32_t id() const;

  // Member of an object; throws when it is absent.
  JsonField member(std::string_view key) const;
  bool has(std::string_view key) const;
  // Member of an object, or the default when it is absent.
  bool boolean_or(std::string_view key, bool fallback) const;
  std::vector<JsonField> elements() const;

  // Refuses keys outside `known`, with the nearest known name, and keys that occur twice.
  void allow_only(std::initializer_list<std::string_view> known) const;
  // Refuses a member that is present and neither null nor (when `or_empty`) "".
  void must_be_unset(std::string_view key, bool or_empty = false) const;
  // Throws Error(checkpoint, "file: path: reason").
  [[noreturn]] void refuse(const std::string& reason) const;

 private:
  [[noreturn]] void wrong_type(const char* wanted) const;

  simdjson::dom::element value_;
  std::string file_;
  std::string path_;
};

// "a string", "an object": what a value is, for messages.
const char* json_type_name(simdjson::dom::element_type type);

}  // namespace facet
