// Keys that occur twice in a JSON object: parsers keep one of the two without a word.
#pragma once

#include <string>

#include "facet/base/error.h"

namespace facet {

// Throws Error(kind), starting with `place`, when an object of the text holds a key twice. What is no JSON passes: the
// caller's parser says why.
void refuse_repeated_keys(const std::string& json, ErrorKind kind, const std::string& place);

}  // namespace facet
