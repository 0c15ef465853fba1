#include "facet/checkpoint/prefixes.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

#include "facet/base/error.h"
#include "facet/base/text.h"

namespace facet {
namespace {

bool has_prefix(const std::vector<std::string>& names, std::string_view prefix) {
  const std::string layers = fmt::format("{}layers.", prefix);
  const std::string embedding = fmt::format("{}embed_tokens.", prefix);
  return std::any_of(names.begin(), names.end(),
                     [&](const std::string& name) { return name.starts_with(layers) || name.starts_with(embedding); });
}

// Where the first component that names another modality begins to do so.
std::size_t modality_mark(std::string_view name) noexcept {
  std::size_t mark = std::string_view::npos;
  for (const char* word : {"vision", "audio", "multi_modal"}) mark = std::min(mark, name.find(word));
  return mark;
}

}  // namespace

bool names_other_modality(std::string_view name) noexcept {
  return modality_mark(name) != std::string_view::npos;
}

std::string weight_prefix(const Checkpoint& checkpoint) {
  const std::vector<std::string> names = checkpoint.names();
  std::vector<std::string> found;
  for (const char* prefix : {"model.", "model.language_model."}) {
    if (has_prefix(names, prefix)) found.emplace_back(prefix);
  }
  if (found.size() == 1) return found[0];
  if (found.size() == 2) {
    throw_error(ErrorKind::checkpoint, "{}: holds two text models, under 'model.' and under 'model.language_model.'",
                checkpoint.directory().string());
  }
  const std::vector<std::string> some(
      names.begin(), names.begin() + static_cast<std::ptrdiff_t>(std::min<std::size_t>(names.size(), 3)));
  throw_error(ErrorKind::checkpoint,
              "{}: no tensor starts with 'model.layers.' or 'model.language_model.layers.'; found {}",
              checkpoint.directory().string(),
              some.empty() ? std::string("no tensor at all") : fmt::format("'{}'", fmt::join(some, "', '")));
}

std::string SkippedModules::text() const {
  if (tensors == 0) return "";
  std::vector<std::string> parts;
  for (const auto& [module, count] : by_module) parts.push_back(fmt::format("{} {}", module, count));
  return fmt::format("skipped {} tensors ({}): {}", tensors, format_bytes(bytes), fmt::join(parts, ", "));
}

SkippedModules skipped_modules(const Checkpoint& checkpoint, std::string_view prefix) {
  SkippedModules skipped;
  for (const std::string& name : checkpoint.names()) {
    const bool text = name.starts_with(fmt::format("{}layers.", prefix)) ||
                      name.starts_with(fmt::format("{}embed_tokens", prefix)) ||
                      name.starts_with(fmt::format("{}norm.", prefix));
    // The module is the first component that names the other modality: "model.vision_tower.encoder..." ->
    // "model.vision_tower".
    const std::size_t mark = modality_mark(name);
    if (text || mark == std::string::npos) continue;
    ++skipped.tensors;
    skipped.bytes += checkpoint.find(name)->bytes;
    ++skipped.by_module[name.substr(0, name.find('.', mark))];
  }
  return skipped;
}

}  // namespace facet
