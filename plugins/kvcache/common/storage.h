// What a row is stored as: the option shared by all cache policies, and the layouts that follow from it.
#pragma once

#include <string_view>
#include <vector>

#include "facet/sdk/kv_cache.h"

namespace facet::kvcache {

// Every block starts on a cache line, which is also the widest vector a kernel loads.
inline constexpr std::uint32_t kAlignment = 64;

inline constexpr const char* kStorageChoices[] = {"bf16", "f32", "i8"};

constexpr abi::OptionSpec storage_option() {
  return sdk::choice_option("storage", "bf16", kStorageChoices,
                            "element type of the stored rows; i8 keeps one float scale a row and head");
}

// Throws invalid_argument for a name outside kStorageChoices.
abi::DType storage_type(std::string_view name);

// Both orders of a block of `block_rows` rows. Head-major first: one head's keys then lie one behind the other.
std::vector<abi::KvLayout> storage_layouts(abi::KvAddressing addressing, abi::DType element, std::uint32_t block_rows);

// Throws unsupported, with both sides as text, unless `layout` is one of `offered`.
void require_offered(const abi::KvLayout& layout, const std::vector<abi::KvLayout>& offered);

}  // namespace facet::kvcache
