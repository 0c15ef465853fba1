// Errors inside a plugin: throw Failure anywhere, the SDK turns it into a Status and one line of text at the line to
// the host.
#pragma once

#include <new>
#include <stdexcept>
#include <string>

#include "facet/sdk/text.h"

namespace facet::sdk {

class Failure : public std::runtime_error {
 public:
  Failure(abi::Status status, const std::string& text) : std::runtime_error(text), status_(status) {}
  abi::Status status() const noexcept { return status_; }

 private:
  abi::Status status_;
};

// fail(abi::Status::unsupported, "head_dim ", 80, " is not a multiple of 16")
template <typename... Args>
[[noreturn]] void fail(abi::Status status, const Args&... args) {
  throw Failure(status, concat(args...));
}

// Runs body; whatever it throws becomes a status and a line in `error`. Nothing escapes.
template <typename Body>
abi::Status guarded(abi::TextSink error, Body&& body) noexcept {
  try {
    body();
    return abi::Status::ok;
  } catch (const Failure& failure) {
    write_line(error, failure.what());
    return failure.status();
  } catch (const std::bad_alloc&) {
    write_line(error, "host memory is exhausted");
    return abi::Status::out_of_memory;
  } catch (const std::exception& exception) {
    write_line(error, exception.what());
    return abi::Status::failed;
  } catch (...) {
    write_line(error, "an exception of unknown type");
    return abi::Status::failed;
  }
}

// Collects reasons against a problem; a bool is not an answer.
class Reasons {
 public:
  explicit Reasons(abi::TextSink sink) : sink_(sink) {}
  // Notes the reason when `holds` is false, and goes on so that all reasons are seen.
  template <typename... Args>
  void require(bool holds, const Args&... reason) {
    if (holds) return;
    ok_ = false;
    write_line(sink_, concat(reason...));
  }
  bool ok() const noexcept { return ok_; }

 private:
  abi::TextSink sink_;
  bool ok_ = true;
};

namespace detail {

inline void drop_line(void* /*context*/, const char* /*text*/, std::uint64_t /*size*/) {}

inline void join_line(void* context, const char* line, std::uint64_t size) {
  auto& joined = *static_cast<std::string*>(context);
  if (!joined.empty()) joined += "; ";
  joined.append(line, size);
}

}  // namespace detail

// A sink that drops what it gets, for predicates whose text nobody asked for.
inline abi::TextSink no_text() {
  return {nullptr, detail::drop_line};
}

// Throws Failure with all reasons joined when `check(Reasons&)` finds any: plan() shares the predicate of supports()
// this way.
template <typename Check>
void require_supported(Check&& check) {
  std::string text;
  Reasons reasons({&text, detail::join_line});
  check(reasons);
  if (!reasons.ok()) throw Failure(abi::Status::unsupported, text);
}

// The answer to supports(): 1 when `check(Reasons&)` finds nothing against the problem.
template <typename Check>
std::uint32_t answer_supports(abi::TextSink sink, Check&& check) noexcept {
  bool ok = false;
  guarded(sink, [&] {
    Reasons reasons(sink);
    check(reasons);
    ok = reasons.ok();
  });
  return ok ? 1 : 0;
}

// The answer to layouts(): copies what `offer()` lists into out[0, capacity) and returns how many there are.
template <typename Value, typename Offer>
std::uint32_t answer_list(Value* out, std::uint32_t capacity, Offer&& offer) noexcept {
  std::uint32_t count = 0;
  guarded(no_text(), [&] {
    for (const Value& value : offer()) {
      if (count < capacity) out[count] = value;
      ++count;
    }
  });
  return count;
}

}  // namespace facet::sdk
