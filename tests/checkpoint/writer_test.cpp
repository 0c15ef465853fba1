#include "facet/checkpoint/writer.h"

#include <gmock/gmock.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <csignal>
#include <random>

#include "facet/checkpoint/safetensors.h"
#include "file_builder.h"

namespace facet::test {
namespace {

using testing::HasSubstr;

std::vector<std::string> names_in(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    names.push_back(entry.path().filename().string());
  return names;
}

TEST(SafetensorsWriter, RoundTripIsBitExactAndAligned) {
  constexpr unsigned kSeed = 77;
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  std::mt19937 random(kSeed);
  const TempFolder folder;
  std::map<std::string, std::string> contents;
  SafetensorsWriter writer(folder / "model.safetensors", {{"format", "pt"}, {"quote", "a\"b\n"}});
  int number = 0;
  for (const TensorType type : {TensorType::u8, TensorType::bf16, TensorType::i64, TensorType::f32, TensorType::i32}) {
    for (const std::int64_t rows : {0, 1, 3, 32, 65}) {
      const std::string name = fmt::format("tensor.{}", number++);
      std::string& bytes = contents[name];
      bytes.resize(static_cast<std::size_t>(rows * 5 * element_bytes(type)));
      for (char& byte : bytes) byte = static_cast<char>(random());
      if (number % 2 == 0) {
        writer.add(name, type, {rows, 5}, bytes.data());
      } else {  // in two pieces
        writer.add(name, type, {rows, 5}, [&bytes](const SafetensorsWriter::Append& append) {
          append(bytes.data(), bytes.size() / 3);
          append(bytes.data() + bytes.size() / 3, bytes.size() - bytes.size() / 3);
        });
      }
    }
  }
  const std::uint64_t written = writer.write();
  EXPECT_THAT(names_in(folder.path()), testing::ElementsAre("model.safetensors"));
  const SafetensorsFile file = SafetensorsFile::open(folder / "model.safetensors");
  EXPECT_EQ(file.file_bytes(), written);
  EXPECT_EQ(file.layout().data_start % 64, 0u);
  EXPECT_EQ(file.layout().hole_bytes + file.layout().trailing_bytes, 0u);
  EXPECT_EQ(file.layout().metadata.at("quote"), "a\"b\n");
  ASSERT_EQ(file.tensors().size(), contents.size());
  for (const Tensor& tensor : file.tensors()) {
    const std::string& bytes = contents.at(tensor.name);
    ASSERT_EQ(tensor.bytes, bytes.size());
    EXPECT_EQ(std::string(reinterpret_cast<const char*>(tensor.data), tensor.bytes), bytes) << tensor.name;
    const auto position = static_cast<std::uint64_t>(tensor.data - file.image());
    const auto alignment = tensor.bytes % 64 == 0 ? 64u : static_cast<unsigned>(element_bytes(tensor.type));
    EXPECT_EQ(position % alignment, 0u) << tensor.name;
  }
}

TEST(SafetensorsWriter, AnEmptyFileIsValid) {
  const TempFolder folder;
  SafetensorsWriter writer(folder / "m.safetensors");
  EXPECT_EQ(writer.write(), 64u);
  EXPECT_TRUE(SafetensorsFile::open(folder / "m.safetensors").tensors().empty());
}

TEST(SafetensorsWriter, FaultsOfTheCaller) {
  const TempFolder folder;
  const float value = 1;
  SafetensorsWriter writer(folder / "m.safetensors");
  writer.add("a", TensorType::f32, {1}, &value);
  expect_words(error_of([&] { writer.add("a", TensorType::f32, {1}, &value); }, ErrorKind::run), {"'a'", "before"});
  expect_words(error_of([&] { writer.add("b", TensorType::f32, {-1}, &value); }, ErrorKind::run), {"'b'", "[-1]"});
  expect_words(error_of([&] { writer.add("b", TensorType::f32, {1ll << 62, 4}, &value); }, ErrorKind::run), {"'b'"});
  for (const std::uint64_t count : {std::uint64_t{4}, std::uint64_t{12}}) {
    SafetensorsWriter wrong(folder / "m.safetensors");
    wrong.add("c", TensorType::f32, {2}, [&](const SafetensorsWriter::Append& append) {
      for (std::uint64_t i = 0; i < count; i += 4) append(&value, 4);
    });
    expect_words(error_of([&] { wrong.write(); }, ErrorKind::run), {"'c'", "8 bytes"});
  }
  SafetensorsWriter throwing(folder / "m.safetensors");
  throwing.add("d", TensorType::f32, {2},
               [](const SafetensorsWriter::Append&) { throw std::runtime_error("producer"); });
  EXPECT_THROW(throwing.write(), std::runtime_error);
  SafetensorsWriter nowhere(folder / "none/m.safetensors");
  EXPECT_THAT(error_of([&] { nowhere.write(); }, ErrorKind::run), HasSubstr("cannot create"));
  EXPECT_TRUE(names_in(folder.path()).empty());
}

// A file size limit stands in for a full disk: writes fail half-way with an error number, as they do there.
TEST(SafetensorsWriter, NothingIsLeftOfAFailedWrite) {
  const TempFolder folder;
  write_file(folder / "m.safetensors", "what was there before");
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{100'000, 100'000};
    if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) ::_exit(10);
    const std::vector<float> values(100'000, 1.0f);
    SafetensorsWriter writer(folder / "m.safetensors");
    writer.add("a", TensorType::f32, {100'000}, values.data());
    try {
      writer.write();
    } catch (const Error& error) {
      const std::string& text = error.message();
      const bool named =
          text.find("m.safetensors") != std::string::npos && text.find("100000 bytes") != std::string::npos;
      ::_exit(error.kind() == ErrorKind::run && named ? 0 : 11);
    }
    ::_exit(12);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0) << "10: no limit, 11: wrong error, 12: no error";
  EXPECT_THAT(names_in(folder.path()), testing::ElementsAre("m.safetensors"));
  EXPECT_EQ(read_file(folder / "m.safetensors"), "what was there before");
}

TEST(WriteText, ReplacesAsAWhole) {
  const TempFolder folder;
  write_text_atomically(folder / "a.json", "one");
  write_text_atomically(folder / "a.json", "two");
  EXPECT_EQ(read_file(folder / "a.json"), "two");
  EXPECT_THAT(names_in(folder.path()), testing::ElementsAre("a.json"));
}

}  // namespace
}  // namespace facet::test
