#include "header_sax.h"

#include "facet/base/error.h"

namespace facet::checkpoint_detail {

std::string shown(const std::string& name) {
  constexpr std::size_t kLongest = 200;
  return name.size() <= kLongest ? name : name.substr(0, kLongest) + "...";
}

void HeaderSax::fail(const std::string& what) const {
  throw_error(ErrorKind::checkpoint, "{}: safetensors header: {}", file_, what);
}

void HeaderSax::wrong_value(const char* kind) const {
  switch (place_) {
    case Place::start:
      fail(fmt::format("must be one JSON object, found {}", kind));
    case Place::top:
      fail(fmt::format("entry '{}' must be an object, found {}", shown(key_), kind));
    case Place::meta:
      fail(fmt::format("__metadata__ '{}' must be text, found {}", shown(key_), kind));
    default:
      fail(fmt::format("tensor '{}': field '{}' cannot hold {}", shown(entry_.name), shown(key_), kind));
  }
}

bool HeaderSax::null() {
  wrong_value("null");
}
bool HeaderSax::boolean(bool) {
  wrong_value("a boolean");
}
bool HeaderSax::number_integer(number_integer_t) {
  wrong_value("a negative number");
}
bool HeaderSax::number_float(number_float_t, const string_t&) {
  wrong_value("a number that is no 64-bit whole number");
}
bool HeaderSax::binary(binary_t&) {
  wrong_value("binary data");
}

bool HeaderSax::number_unsigned(number_unsigned_t value) {
  if (place_ != Place::list) wrong_value("a number");
  std::vector<std::uint64_t>& list = key_ == "shape" ? entry_.shape : entry_.offsets;
  // No tensor of this kind has more axes; without a limit a hostile header costs memory.
  if (list.size() >= 16) fail(fmt::format("tensor '{}': '{}' has more than 16 entries", shown(entry_.name), key_));
  list.push_back(value);
  return true;
}

bool HeaderSax::string(string_t& value) {
  if (place_ == Place::meta) {
    metadata[key_] = value;
    return true;
  }
  if (place_ != Place::entry || key_ != "dtype") wrong_value("text");
  entry_.type = value;
  entry_.has_type = true;
  return true;
}

bool HeaderSax::start_object(std::size_t) {
  switch (place_) {
    case Place::start:
      place_ = Place::top;
      return true;
    case Place::top:
      place_ = in_metadata_ ? Place::meta : Place::entry;
      return true;
    default:
      wrong_value("an object");
  }
}

bool HeaderSax::key(string_t& value) {
  key_ = value;
  if (place_ == Place::top) {
    if (!names_.insert(value).second) fail(fmt::format("tensor '{}' occurs twice", shown(value)));
    in_metadata_ = value == "__metadata__";
    entry_ = RawEntry{};
    entry_.name = value;
  } else if (place_ == Place::entry) {
    const bool repeated = (value == "dtype" && entry_.has_type) || (value == "shape" && entry_.has_shape) ||
                          (value == "data_offsets" && entry_.has_offsets);
    if (repeated) fail(fmt::format("tensor '{}': field '{}' occurs twice", shown(entry_.name), value));
    if (value != "dtype" && value != "shape" && value != "data_offsets") {
      fail(fmt::format("tensor '{}': unknown field '{}'; known are dtype, shape, data_offsets", shown(entry_.name),
                       shown(value)));
    }
  }
  return true;
}

bool HeaderSax::end_object() {
  if (place_ == Place::entry) {
    for (const auto& [present, field] : {std::pair<bool, const char*>{entry_.has_type, "dtype"},
                                         {entry_.has_shape, "shape"},
                                         {entry_.has_offsets, "data_offsets"}}) {
      if (!present) fail(fmt::format("tensor '{}': field '{}' is missing", shown(entry_.name), field));
    }
    entries.push_back(std::move(entry_));
    place_ = Place::top;
  } else if (place_ == Place::meta) {
    place_ = Place::top;
  } else {
    place_ = Place::done;
  }
  return true;
}

bool HeaderSax::start_array(std::size_t) {
  if (place_ != Place::entry || key_ == "dtype") wrong_value("a list");
  (key_ == "shape" ? entry_.has_shape : entry_.has_offsets) = true;
  place_ = Place::list;
  return true;
}

bool HeaderSax::end_array() {
  place_ = Place::entry;
  return true;
}

bool HeaderSax::parse_error(std::size_t position, const std::string&, const nlohmann::json::exception&) {
  // The token is left out: it may be any bytes.
  fail(fmt::format("not valid JSON at byte {} of the header", position));
}

}  // namespace facet::checkpoint_detail
