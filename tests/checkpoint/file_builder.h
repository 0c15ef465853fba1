// Hand-built checkpoint files for tests: independent of the writer under test.
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <vector>

#include "facet/base/error.h"
#include "facet/base/log.h"

namespace facet::test {

// A folder that disappears with the object.
class TempFolder {
 public:
  TempFolder() {
    static int counter = 0;
    path_ = std::filesystem::path(testing::TempDir()) / fmt::format("facet-ckpt-{}-{}", ::getpid(), counter++);
    std::filesystem::create_directories(path_);
  }
  ~TempFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

inline void write_file(const std::filesystem::path& file, const std::string& bytes) {
  std::ofstream stream(file, std::ios::binary | std::ios::trunc);
  stream.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  ASSERT_TRUE(stream.good()) << file;
}

inline std::string read_file(const std::filesystem::path& file) {
  std::ifstream stream(file, std::ios::binary);
  return std::string((std::istreambuf_iterator<char>(stream)), std::istreambuf_iterator<char>());
}

// 8 length bytes, header text, data.
inline std::string image(const std::string& header, const std::string& data) {
  std::string bytes(8, '\0');
  std::uint64_t length = header.size();
  for (std::size_t i = 0; i < 8; ++i) bytes[i] = static_cast<char>(length >> (8 * i));
  return bytes + header + data;
}

template <typename T>
std::string bytes_of(const std::vector<T>& values) {
  std::string bytes(values.size() * sizeof(T), '\0');
  if (!values.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

// Collects tensors, then gives the image of a file.
class FileBuilder {
 public:
  template <typename T>
  FileBuilder& add(const std::string& name, const std::string& type, const std::vector<std::int64_t>& shape,
                   const std::vector<T>& values) {
    return add_bytes(name, type, shape, bytes_of(values));
  }

  FileBuilder& add_bytes(const std::string& name, const std::string& type, const std::vector<std::int64_t>& shape,
                         const std::string& bytes) {
    entries_ += fmt::format("{}\"{}\":{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}}",
                            entries_.empty() ? "" : ",", name, type, fmt::join(shape, ","), data_.size(),
                            data_.size() + bytes.size());
    data_ += bytes;
    return *this;
  }

  std::string build() const {
    std::string header = fmt::format("{{{}}}", entries_);
    // As the format's own writer does; keeps elements aligned.
    while (header.size() % 8 != 0) header += ' ';
    return image(header, data_);
  }

 private:
  std::string entries_;
  std::string data_;
};

// The message of the facet::Error that `action` throws; a test failure when it throws nothing or the wrong kind.
inline std::string error_of(const std::function<void()>& action, ErrorKind kind = ErrorKind::checkpoint) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(static_cast<int>(error.kind()), static_cast<int>(kind)) << error.message();
    return error.message();
  }
  ADD_FAILURE() << "no error was thrown";
  return "";
}

inline void expect_words(const std::string& text, const std::vector<std::string>& words) {
  for (const std::string& word : words)
    EXPECT_NE(text.find(word), std::string::npos) << "'" << word << "' not in: " << text;
}

}  // namespace facet::test
