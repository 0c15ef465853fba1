// One number over the layout of every struct of the contract: sizes, field offsets, and the order of the methods.
// Host and plugin compare it before anything else, so a header edited on one side is refused instead of misread.
#pragma once

#include <cstddef>

#include "facet/abi/attention.h"
#include "facet/abi/kv_cache.h"
#include "facet/abi/linear.h"
#include "facet/abi/plugin.h"
#include "facet/abi/scheduler.h"

namespace facet::abi {

namespace detail {

struct LayoutField {
  const char* name;
  std::size_t offset;
};

#define FACET_ABI_FIELD(type, field)                      \
  ::facet::abi::detail::LayoutField {                     \
#type "." #field, offsetof(::facet::abi::type, field) \
  }
#define FACET_ABI_SIZE(type)          \
  ::facet::abi::detail::LayoutField { \
#type, sizeof(::facet::abi::type) \
  }
// The position in this table stands for the slot in the virtual table.
#define FACET_ABI_METHOD(type, method, slot) \
  ::facet::abi::detail::LayoutField {        \
#type "::" #method, slot                 \
  }

inline constexpr LayoutField kLayout[] = {
#include "facet/abi/layout_table.inc"
};

#undef FACET_ABI_FIELD
#undef FACET_ABI_SIZE
#undef FACET_ABI_METHOD

constexpr std::uint64_t layout_hash() {
  std::uint64_t hash = 0xcbf29ce484222325ull;
  for (const LayoutField& field : kLayout) {
    for (const char* c = field.name; *c != '\0'; ++c) hash = (hash ^ static_cast<unsigned char>(*c)) * 0x100000001b3ull;
    for (int shift = 0; shift < 32; shift += 8) hash = (hash ^ ((field.offset >> shift) & 0xff)) * 0x100000001b3ull;
  }
  return hash;
}

}  // namespace detail

inline constexpr std::uint64_t kLayoutHash = detail::layout_hash();

}  // namespace facet::abi
