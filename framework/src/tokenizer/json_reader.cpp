#include "json_reader.h"

#include <algorithm>
#include <limits>

#include "facet/base/error.h"
#include "facet/base/text.h"

namespace facet {

const char* json_type_name(simdjson::dom::element_type type) {
  using Type = simdjson::dom::element_type;
  switch (type) {
    case Type::ARRAY:
      return "an array";
    case Type::OBJECT:
      return "an object";
    case Type::INT64:
    case Type::UINT64:
    case Type::DOUBLE:
      return "a number";
    case Type::STRING:
      return "a string";
    case Type::BOOL:
      return "true or false";
    case Type::NULL_VALUE:
      return "null";
  }
  return "an unknown value";
}

void JsonField::refuse(const std::string& reason) const {
  throw_error(ErrorKind::checkpoint, "{}: {}: {}", file_, path_.empty() ? "the document" : path_, reason);
}

void JsonField::wrong_type(const char* wanted) const {
  refuse(fmt::format("must be {}, but is {}", wanted, json_type_name(value_.type())));
}

simdjson::dom::object JsonField::object() const {
  simdjson::dom::object object;
  if (value_.get(object) != simdjson::SUCCESS) wrong_type("an object");
  return object;
}

simdjson::dom::array JsonField::array() const {
  simdjson::dom::array array;
  if (value_.get(array) != simdjson::SUCCESS) wrong_type("an array");
  return array;
}

std::string_view JsonField::text() const {
  std::string_view text;
  if (value_.get(text) != simdjson::SUCCESS) wrong_type("a string");
  return text;
}

bool JsonField::boolean() const {
  bool flag = false;
  if (value_.get(flag) != simdjson::SUCCESS) wrong_type("true or false");
  return flag;
}

std::int32_t JsonField::id() const {
  std::int64_t number = 0;
  if (value_.get(number) != simdjson::SUCCESS) wrong_type("a whole number");
  if (number < 0 || number > std::numeric_limits<std::int32_t>::max()) {
    refuse(fmt::format("{} is no token id; ids are 0 to {}", number, std::numeric_limits<std::int32_t>::max()));
  }
  return static_cast<std::int32_t>(number);
}

bool JsonField::has(std::string_view key) const {
  simdjson::dom::element found;
  return object().at_key(key).get(found) == simdjson::SUCCESS;
}

JsonField JsonField::member(std::string_view key) const {
  simdjson::dom::element found;
  std::string path = path_.empty() ? std::string(key) : fmt::format("{}.{}", path_, key);
  if (object().at_key(key).get(found) != simdjson::SUCCESS) {
    throw_error(ErrorKind::checkpoint, "{}: {}: is missing", file_, path);
  }
  return JsonField(found, file_, std::move(path));
}

bool JsonField::boolean_or(std::string_view key, bool fallback) const {
  return has(key) ? member(key).boolean() : fallback;
}

std::vector<JsonField> JsonField::elements() const {
  std::vector<JsonField> fields;
  std::size_t index = 0;
  for (simdjson::dom::element value : array()) fields.emplace_back(value, file_, fmt::format("{}[{}]", path_, index++));
  return fields;
}

void JsonField::allow_only(std::initializer_list<std::string_view> known) const {
  std::vector<std::string_view> seen;
  for (simdjson::dom::key_value_pair pair : object()) {
    if (std::find(known.begin(), known.end(), pair.key) == known.end()) {
      const std::string near = nearest_name(pair.key, std::vector<std::string>(known.begin(), known.end()));
      refuse(fmt::format("setting '{}' is not supported{}", pair.key,
                         near.empty() ? std::string() : fmt::format(" (did the file mean '{}'?)", near)));
    }
    if (std::find(seen.begin(), seen.end(), pair.key) != seen.end()) refuse(fmt::format("'{}' occurs twice", pair.key));
    seen.push_back(pair.key);
  }
}

void JsonField::must_be_unset(std::string_view key, bool or_empty) const {
  if (!has(key)) return;
  const JsonField field = member(key);
  if (field.is_null()) return;
  if (or_empty && field.value_.is_string() && field.text().empty()) return;
  field.refuse("is not supported; only null is");
}

}  // namespace facet
