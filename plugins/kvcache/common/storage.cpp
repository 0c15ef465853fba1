#include "common/storage.h"

namespace facet::kvcache {

abi::DType storage_type(std::string_view name) {
  if (name == "bf16") return abi::DType::bf16;
  if (name == "f32") return abi::DType::f32;
  if (name == "i8") return abi::DType::i8;
  sdk::fail(abi::Status::invalid_argument, "storage = \"", name, "\" is none of bf16, f32, i8");
}

std::vector<abi::KvLayout> storage_layouts(abi::KvAddressing addressing, abi::DType element, std::uint32_t block_rows) {
  abi::KvLayout layout{};
  layout.size = sizeof layout;
  layout.addressing = addressing;
  layout.order = abi::KvOrder::head_major;
  layout.element = element;
  layout.scales = element == abi::DType::i8 ? abi::KvScales::per_row_head : abi::KvScales::none;
  layout.block_rows = block_rows;
  layout.alignment = kAlignment;
  abi::KvLayout token_major = layout;
  token_major.order = abi::KvOrder::token_major;
  return {layout, token_major};
}

void require_offered(const abi::KvLayout& layout, const std::vector<abi::KvLayout>& offered) {
  std::string list;
  for (const abi::KvLayout& own : offered) {
    if (own.addressing == layout.addressing && own.order == layout.order && own.element == layout.element &&
        own.scales == layout.scales && own.block_rows == layout.block_rows && own.alignment == layout.alignment) {
      return;
    }
    if (!list.empty()) list += ", or ";
    list += sdk::to_string(own);
  }
  sdk::fail(abi::Status::unsupported, "the layout asked for is ", sdk::to_string(layout), " in blocks aligned to ",
            layout.alignment, " bytes; stored can be ", list, ", aligned to ", kAlignment);
}

}  // namespace facet::kvcache
