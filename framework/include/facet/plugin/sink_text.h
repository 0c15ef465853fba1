// The receiving end of abi::TextSink.
#pragma once

#include <string>

#include "facet/abi/types.h"

namespace facet {

// Collects what a plugin writes to a TextSink, lines joined with "; ".
class SinkText {
 public:
  abi::TextSink sink() {
    return {this, [](void* context, const char* text, std::uint64_t size) {
              std::string& joined = static_cast<SinkText*>(context)->text_;
              if (!joined.empty()) joined += "; ";
              joined.append(text, size);
            }};
  }
  const std::string& text() const { return text_; }
  bool empty() const { return text_.empty(); }

 private:
  std::string text_;
};

}  // namespace facet
