// What the device refuses becomes an error with the operation's name.
#pragma once

#include "facet/abi/types.h"
#include "facet/base/error.h"
#include "facet/plugin/sink_text.h"
#include "facet/sdk/text.h"

namespace facet::cuda {

inline void check(abi::Status status, const char* operation, const SinkText& text) {
  if (status == abi::Status::ok) return;
  throw_error(ErrorKind::run, "the CUDA device failed in {}: {}: {}", operation, sdk::to_string(status), text.text());
}

}  // namespace facet::cuda
