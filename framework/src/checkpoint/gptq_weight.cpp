#include "gptq_weight.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "facet/base/error.h"
#include "tensor_values.h"

namespace facet::checkpoint_detail {
namespace {

constexpr std::int64_t kPerWord = 8;
constexpr int kMiddle = 8;  // the zero code of symmetric weights

// The four tensors of a module, with shapes that agree with each other and with the model.
struct Parts {
  const Tensor* codes;
  const Tensor* zeros;
  const Tensor* scales;
  const Tensor* indices;  // null: contiguous groups
};

Parts require_parts(const Checkpoint& checkpoint, const GptqModule& packed, const std::string& module, std::int64_t out,
                    std::int64_t in) {
  const std::int64_t group = packed.stored_group_size < 0 ? in : packed.stored_group_size;
  const std::int64_t groups = ceil_div(in, group);
  Parts parts{};
  parts.codes = &checkpoint.require(module + ".qweight", {ceil_div(in, kPerWord), out}, {TensorType::i32});
  parts.zeros = &checkpoint.require(module + ".qzeros", {groups, ceil_div(out, kPerWord)}, {TensorType::i32});
  parts.scales =
      &checkpoint.require(module + ".scales", {groups, out}, {TensorType::f16, TensorType::bf16, TensorType::f32});
  if (checkpoint.find(module + ".g_idx") != nullptr)
    parts.indices = &checkpoint.require(module + ".g_idx", {in}, {TensorType::i32});
  return parts;
}

void refuse_bias(const Checkpoint& checkpoint, const std::string& module) {
  const Tensor* bias = checkpoint.find(module + ".bias");
  if (bias == nullptr) return;  // some writers store zeros for layers that have none
  const bool zero = std::all_of(bias->data, bias->data + bias->bytes, [](std::byte b) { return b == std::byte{0}; });
  if (!zero) {
    throw_error(ErrorKind::checkpoint,
                "{}: holds values other than zero, but the model's linear layers have no bias; the checkpoint is of "
                "another architecture",
                describe(*bias));
  }
}

// Words [words, out] to [out, words]: the eight inputs of a word are the same ones in the canonical form. Squares of 16
// by 16 words keep both sides in a few cache lines.
std::vector<std::uint32_t> transpose_codes(const Tensor& codes) {
  constexpr std::int64_t kSquare = 16;
  const std::int64_t words = codes.shape[0], out = codes.shape[1];
  std::vector<std::uint32_t> result(static_cast<std::size_t>(words * out));
  for (std::int64_t row = 0; row < words; row += kSquare) {
    for (std::int64_t column = 0; column < out; column += kSquare) {
      for (std::int64_t w = row; w < std::min(row + kSquare, words); ++w) {
        for (std::int64_t n = column; n < std::min(column + kSquare, out); ++n)
          result[static_cast<std::size_t>(n * words + w)] = load_u32(codes.data + 4 * (w * out + n));
      }
    }
  }
  return result;
}

// The zero code of every group and output, [groups, out].
std::vector<std::uint8_t> decode_zeros(const Tensor& zeros, const GptqSettings& settings, std::int64_t out) {
  // Adding to whole words undoes what GPTQModel does, and is the same as adding to every code unless one of them is 15.
  const std::uint32_t added = settings.zeros == GptqZeros::minus_one ? 0x11111111u : 0u;
  const std::int64_t groups = zeros.shape[0], words = zeros.shape[1];
  std::vector<std::uint8_t> result(static_cast<std::size_t>(groups * out));
  for (std::int64_t group = 0; group < groups; ++group) {
    for (std::int64_t n = 0; n < out; ++n) {
      const std::uint32_t stored = load_u32(zeros.data + 4 * (group * words + n / kPerWord));
      const auto shift = static_cast<unsigned>(4 * (n % kPerWord));
      if (added != 0 && !settings.whole_word_zeros && ((stored >> shift) & 15u) == 15u) {
        throw_error(ErrorKind::checkpoint,
                    "{}: the stored zero point of group {}, output {} is 15; checkpoint_format 'gptq' stores one less "
                    "than the zero point, and programs disagree whether 15 then means 0 or 16. {} does not name "
                    "gptqmodel as the writer, which would decide it; convert the checkpoint to 'gptq_v2'",
                    describe(zeros), group, n, settings.file);
      }
      result[static_cast<std::size_t>(group * out + n)] = static_cast<std::uint8_t>(((stored + added) >> shift) & 15u);
    }
  }
  return result;
}

void check_symmetric(const Tensor& tensor, const std::vector<std::uint8_t>& zeros, const GptqSettings& settings,
                     std::int64_t out) {
  const auto odd = std::find_if(zeros.begin(), zeros.end(), [](std::uint8_t zero) { return zero != kMiddle; });
  if (odd == zeros.end()) return;
  const std::int64_t at = odd - zeros.begin();
  const bool plain = settings.zeros == GptqZeros::plain;
  // 7 read as it is, or 8 with one added: the other convention fits.
  const bool other = *odd == (plain ? kMiddle - 1 : kMiddle + 1);
  throw_error(ErrorKind::checkpoint,
              "{}: the zero point of group {}, output {} is {} where symmetric weights have {}; {} says sym true and "
              "checkpoint_format '{}'; {}",
              describe(tensor), at / out, at % out, *odd, kMiddle, settings.file, to_string(settings.zeros),
              other ? fmt::format("the file looks like '{}', correct checkpoint_format",
                                  to_string(plain ? GptqZeros::minus_one : GptqZeros::plain))
                    : std::string("set sym to false if the zero points are meant"));
}

// The stored group of every run of `run` inputs.
std::vector<std::int64_t> groups_of_runs(const Parts& parts, std::int64_t in, std::int64_t run) {
  std::vector<std::int64_t> groups;
  for (std::int64_t begin = 0; begin < in; begin += run)
    groups.push_back(parts.indices != nullptr ? load_u32(parts.indices->data + 4 * begin) : begin / run);
  return groups;
}

}  // namespace

const GptqModule* gptq_module(const Checkpoint& checkpoint, const QuantizationConfig& config,
                              const std::string& module) {
  const auto found = config.gptq_modules.find(module);
  if (found == config.gptq_modules.end()) return nullptr;
  if (const Tensor* dense = checkpoint.find(module + ".weight")) {
    throw_error(ErrorKind::checkpoint, "{}: the checkpoint also holds {}.qweight; remove one of them", describe(*dense),
                module);
  }
  return &found->second;
}

LinearWeight load_gptq(const Checkpoint& checkpoint, const GptqSettings& settings, const GptqModule& packed,
                       const std::string& module, std::int64_t out, std::int64_t in) {
  Parts parts{};
  try {
    parts = require_parts(checkpoint, packed, module, out, in);
  } catch (Error& error) {
    error.add_context(fmt::format(
        "{} says that {} is {}; correct it there if the file is right, or fetch the file again", settings.file, module,
        to_string(QuantizationScheme{4, packed.scheme.symmetric, packed.stored_group_size})));
    throw;
  }
  refuse_bias(checkpoint, module);
  const std::vector<std::uint8_t> zeros = decode_zeros(*parts.zeros, settings, out);
  if (packed.scheme.symmetric) check_symmetric(*parts.zeros, zeros, settings, out);

  const std::int64_t run = packed.scheme.group_size < 0 ? in : packed.scheme.group_size;
  const std::vector<std::int64_t> groups = groups_of_runs(parts, in, run);
  std::vector<float> row_scales;
  std::vector<std::uint8_t> row_zeros;
  row_scales.reserve(static_cast<std::size_t>(out) * groups.size());
  for (std::int64_t n = 0; n < out; ++n) {
    for (const std::int64_t group : groups) {
      const float scale = load_float(*parts.scales, group * out + n);
      if (!std::isfinite(scale)) {
        throw_error(ErrorKind::checkpoint, "{}: scale [{}, {}] is {}; the checkpoint is damaged, fetch it again",
                    describe(*parts.scales), group, n, scale);
      }
      row_scales.push_back(scale);
      if (!packed.scheme.symmetric) row_zeros.push_back(zeros[static_cast<std::size_t>(group * out + n)]);
    }
  }
  const std::vector<std::uint32_t> codes = transpose_codes(*parts.codes);
  return LinearWeight::from_parts(abi::WeightFormat::int4, out, in, run, codes.data(), ceil_div(in, kPerWord) * 4,
                                  std::move(row_scales), std::move(row_zeros));
}

}  // namespace facet::checkpoint_detail
