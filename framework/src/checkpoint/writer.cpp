#include "facet/checkpoint/writer.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "atomic_file.h"
#include "facet/base/error.h"

namespace facet {
namespace {

constexpr std::uint64_t kAlignment = 64;

std::uint64_t bytes_of(const std::string& name, TensorType type, const std::vector<std::int64_t>& shape) {
  std::int64_t bytes = element_bytes(type);
  for (const std::int64_t extent : shape) {
    if (extent < 0 || __builtin_mul_overflow(bytes, extent, &bytes)) {
      throw_error(ErrorKind::run, "tensor '{}': shape {} of {} is not a size", name, shape_text(shape),
                  to_string(type));
    }
  }
  return static_cast<std::uint64_t>(bytes);
}

}  // namespace

SafetensorsWriter::SafetensorsWriter(std::filesystem::path file, std::map<std::string, std::string> metadata)
    : file_(std::move(file)), metadata_(std::move(metadata)) {}

void SafetensorsWriter::add(std::string name, TensorType type, std::vector<std::int64_t> shape, Produce produce) {
  if (name == "__metadata__" ||
      std::any_of(entries_.begin(), entries_.end(), [&](const Entry& e) { return e.name == name; })) {
    throw_error(ErrorKind::run, "{}: tensor '{}' was added before or is reserved", file_.string(), name);
  }
  const std::uint64_t bytes = bytes_of(name, type, shape);
  entries_.push_back({std::move(name), type, std::move(shape), bytes, std::move(produce)});
}

void SafetensorsWriter::add(std::string name, TensorType type, std::vector<std::int64_t> shape, const void* data) {
  const std::uint64_t bytes = bytes_of(name, type, shape);
  add(std::move(name), type, std::move(shape), [data, bytes](const Append& append) { append(data, bytes); });
}

std::string SafetensorsWriter::header() const {
  nlohmann::ordered_json json;
  if (!metadata_.empty()) json["__metadata__"] = metadata_;
  std::uint64_t offset = 0;
  for (const Entry& entry : entries_) {
    json[entry.name] = {{"dtype", to_string(entry.type)},
                        {"shape", entry.shape},
                        {"data_offsets", std::array<std::uint64_t, 2>{offset, offset + entry.bytes}}};
    offset += entry.bytes;
  }
  std::string text = entries_.empty() && metadata_.empty() ? "{}" : json.dump();
  text.append((kAlignment - (8 + text.size()) % kAlignment) % kAlignment, ' ');
  return text;
}

std::uint64_t SafetensorsWriter::write() {
  const auto rank = [](const Entry& entry) {
    return entry.bytes % kAlignment == 0 ? std::int64_t{0} : 16 - element_bytes(entry.type);
  };
  std::stable_sort(entries_.begin(), entries_.end(), [&](const Entry& a, const Entry& b) { return rank(a) < rank(b); });
  checkpoint_detail::AtomicFile out(file_);
  const std::string text = header();
  std::array<unsigned char, 8> length{};
  for (std::size_t i = 0; i < length.size(); ++i)
    length[i] = static_cast<unsigned char>(std::uint64_t{text.size()} >> (8 * i));
  out.append(length.data(), length.size());
  out.append(text.data(), text.size());
  for (Entry& entry : entries_) {
    const std::uint64_t end = out.written() + entry.bytes;
    entry.produce([&](const void* bytes, std::uint64_t count) {
      if (count > end - out.written()) {
        throw_error(ErrorKind::run, "{}: tensor '{}' was given more than its {} bytes", file_.string(), entry.name,
                    entry.bytes);
      }
      out.append(bytes, count);
    });
    if (out.written() != end) {
      throw_error(ErrorKind::run, "{}: tensor '{}' was given {} of its {} bytes", file_.string(), entry.name,
                  entry.bytes - (end - out.written()), entry.bytes);
    }
    entry.produce = nullptr;  // frees what the producer held
  }
  out.commit();
  return out.written();
}

void write_text_atomically(const std::filesystem::path& file, const std::string& text) {
  checkpoint_detail::AtomicFile out(file);
  out.append(text.data(), text.size());
  out.commit();
}

}  // namespace facet
