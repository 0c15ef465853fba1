#include "facet/base/json_keys.h"

#include <nlohmann/json.hpp>
#include <set>
#include <vector>

namespace facet {

void refuse_repeated_keys(const std::string& json, ErrorKind kind, const std::string& place) {
  using Json = nlohmann::json;
  constexpr std::size_t kLongestShown = 200;
  std::vector<std::set<std::string>> keys;
  const auto watch = [&](int, Json::parse_event_t event, Json& value) {
    if (event == Json::parse_event_t::object_start) keys.emplace_back();
    if (event == Json::parse_event_t::object_end) keys.pop_back();
    if (event == Json::parse_event_t::key && !keys.back().insert(value.get<std::string>()).second) {
      throw_error(kind, "{}: '{}' occurs twice in one object; leave one of the two out", place,
                  value.get<std::string>().substr(0, kLongestShown));
    }
    return true;
  };
  [[maybe_unused]] const Json whole = Json::parse(json, watch, false);
}

}  // namespace facet
