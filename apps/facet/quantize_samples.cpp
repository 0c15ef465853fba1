#include "quantize_samples.h"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>

#include "facet/base/text.h"
#include "facet/tokenizer/tokenizer.h"
#include "gemma4/calibration_forward.h"

namespace facet::cli {
namespace {

std::string read_text(const std::string& file) {
  require_file(file);
  std::ifstream in(file, std::ios::binary);
  if (!in) throw_error(ErrorKind::usage, "{}: cannot be opened: {}", file, std::strerror(errno));
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

Sequences cut_text(const QuantizeSettings& settings) {
  const Tokenizer tokenizer = Tokenizer::load(std::filesystem::path(settings.in) / "tokenizer.json");
  const std::vector<std::int32_t> front = tokenizer.encode("");
  std::vector<std::int32_t> ids;
  try {
    ids = tokenizer.encode(read_text(settings.calibration), {false, false});
  } catch (Error& error) {
    error.add_context("in " + settings.calibration);
    throw;
  }
  const auto step = static_cast<std::size_t>(settings.length) - std::min<std::size_t>(front.size(), 1);
  Sequences pieces;
  for (std::size_t begin = 0; begin < ids.size(); begin += step) {
    std::vector<std::int32_t> piece = front;
    piece.insert(piece.end(), ids.begin() + static_cast<std::ptrdiff_t>(begin),
                 ids.begin() + static_cast<std::ptrdiff_t>(std::min(begin + step, ids.size())));
    // A short rest would weigh as much as a whole piece when samples are counted.
    if (pieces.empty() || 2 * piece.size() > pieces.front().size()) pieces.push_back(std::move(piece));
  }
  if (pieces.empty()) throw_error(ErrorKind::usage, "{}: holds no text", settings.calibration);
  return pieces;
}

}  // namespace

Sequences read_samples(const QuantizeSettings& settings) {
  const bool lines = std::filesystem::path(settings.calibration).extension() == ".jsonl";
  const Sequences all = lines ? read_token_lines(settings.calibration) : cut_text(settings);
  const std::size_t count = std::min(all.size(), static_cast<std::size_t>(settings.samples));
  Sequences samples;
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t place = i * all.size() / count;
    samples.push_back(all[place]);
    if (samples.back().empty())
      throw_error(ErrorKind::usage, "{}: sequence {} is empty", settings.calibration, place + 1);
    if (samples.back().size() > static_cast<std::size_t>(settings.length))
      samples.back().resize(static_cast<std::size_t>(settings.length));
  }
  return samples;
}

void require_fit(const Sequences& sequences, const std::string& file, const gemma4::ModelConfig& model) {
  try {
    gemma4::check_sequences(model, sequences);
  } catch (Error& error) {
    error.add_context("in " + file);
    throw;
  }
}

std::int64_t token_count(const Sequences& sequences) {
  std::size_t count = 0;
  for (const auto& sequence : sequences) count += sequence.size();
  return static_cast<std::int64_t>(count);
}

std::uint64_t fingerprint(const Sequences& sequences) {
  std::uint64_t hash = fnv1a(nullptr, 0);
  for (const auto& sequence : sequences) {
    const std::uint64_t size = sequence.size();
    hash = fnv1a(&size, sizeof size, hash);
    hash = fnv1a(sequence.data(), size * sizeof(std::int32_t), hash);
  }
  return hash;
}

}  // namespace facet::cli
