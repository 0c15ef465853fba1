// Case 56: no file, however cut or forged, is read past its end, and every fault has its own error.
#include "facet/checkpoint/safetensors.h"

#include <gmock/gmock.h>

#include <csignal>
#include <cstdlib>
#include <memory>

#include "facet/checkpoint/mapping_fault.h"
#include "file_builder.h"

namespace facet::test {
namespace {

using testing::HasSubstr;

// Parses from a heap block of exactly the file's size, so that a sanitizer sees any read beyond it.
SafetensorsLayout parse(const std::string& bytes, std::unique_ptr<std::byte[]>& storage) {
  storage = std::make_unique<std::byte[]>(bytes.size());
  if (!bytes.empty()) std::memcpy(storage.get(), bytes.data(), bytes.size());
  return parse_safetensors(storage.get(), bytes.size(), "m.safetensors");
}

std::string parse_error(const std::string& bytes) {
  std::unique_ptr<std::byte[]> storage;
  const std::string message = error_of([&] { parse(bytes, storage); });
  EXPECT_THAT(message, HasSubstr("m.safetensors"));
  return message;
}

std::string entry(const std::string& name, const std::string& type, const std::string& shape,
                  const std::string& offsets) {
  return fmt::format("\"{}\":{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{}]}}", name, type, shape, offsets);
}

std::string valid() {
  return FileBuilder()
      .add<std::uint16_t>("a", "BF16", {2, 3}, {1, 2, 3, 4, 5, 6})
      .add<std::int32_t>("b", "I32", {4}, {7, 8, 9, 10})
      .build();
}

TEST(Safetensors, ReadsTensorsAndMetadata) {
  std::unique_ptr<std::byte[]> storage;
  const std::string header = std::string("{\"__metadata__\":{\"format\":\"pt\"},") + entry("x", "F32", "", "0,4") +
                             "," + entry("empty", "I64", "0,5", "4,4") + "}";
  const SafetensorsLayout layout = parse(image(header, std::string("\0\0\x80\x3f", 4)), storage);
  ASSERT_EQ(layout.tensors.size(), 2u);
  EXPECT_EQ(layout.metadata.at("format"), "pt");
  EXPECT_EQ(layout.tensors[0].name, "x");
  EXPECT_TRUE(layout.tensors[0].shape.empty());
  float one = 0;
  std::memcpy(&one, layout.tensors[0].data, 4);
  EXPECT_EQ(one, 1.0f);
  EXPECT_EQ(layout.tensors[1].bytes, 0u);
  EXPECT_EQ(layout.trailing_bytes + layout.hole_bytes, 0u);
}

TEST(Safetensors, FileIsMappedAndMovable) {
  const TempFolder folder;
  write_file(folder / "model.safetensors", valid());
  SafetensorsFile first = SafetensorsFile::open(folder / "model.safetensors");
  const std::byte* data = first.find("b")->data;
  const SafetensorsFile moved = std::move(first);
  ASSERT_NE(moved.find("b"), nullptr);
  EXPECT_EQ(moved.find("b")->data, data);
  EXPECT_EQ(moved.find("b")->type, TensorType::i32);
  EXPECT_EQ(moved.find("c"), nullptr);
  std::int32_t last = 0;
  std::memcpy(&last, moved.find("b")->data + 12, 4);
  EXPECT_EQ(last, 10);
  moved.release_pages();
  std::memcpy(&last, moved.find("b")->data + 8, 4);
  EXPECT_EQ(last, 9);
}

TEST(Safetensors, EveryTruncationIsAnErrorWithBothSizes) {
  const TempFolder folder;
  const std::string whole = valid();
  for (std::size_t size = 0; size < whole.size(); ++size) {
    write_file(folder / "cut.safetensors", whole.substr(0, size));
    const std::string message = error_of([&] { SafetensorsFile::open(folder / "cut.safetensors"); });
    expect_words(message, {"cut.safetensors", std::to_string(size)});
  }
  // Cut by one byte: the tensor that no longer fits is named with the end it needs.
  expect_words(parse_error(whole.substr(0, whole.size() - 1)),
               {"'b'", std::to_string(whole.size()), std::to_string(whole.size() - 1)});
  // Cut by the whole last tensor and by half.
  expect_words(parse_error(whole.substr(0, whole.size() - 16)), {"'b'", std::to_string(whole.size())});
}

TEST(Safetensors, TinyFiles) {
  EXPECT_THAT(parse_error(""), HasSubstr("the file has 0"));
  EXPECT_THAT(parse_error("abcd"), HasSubstr("the file has 4"));
  EXPECT_THAT(parse_error(std::string(8, '\0')), HasSubstr("empty"));
  EXPECT_THAT(parse_error(std::string("\1\0\0\0\0\0\0\0", 8)), HasSubstr("byte 9, the file has 8"));
  EXPECT_THAT(parse_error(std::string("\1\0\0\0\0\0\0\0{", 9)), HasSubstr("JSON"));
  EXPECT_THAT(parse_error(std::string("\2\0\0\0\0\0\0\0{", 9)), HasSubstr("byte 10, the file has 9"));
  EXPECT_THAT(parse_error(std::string(16, '\xff')), HasSubstr("limit"));
}

TEST(Safetensors, TrailingBytesAndHolesAreCounted) {
  std::unique_ptr<std::byte[]> storage;
  EXPECT_EQ(parse(valid() + "tail!", storage).trailing_bytes, 5u);
  const std::string holes = std::string("{") + entry("a", "U8", "2", "3,5") + "," + entry("b", "U8", "1", "7,8") + "}";
  const SafetensorsLayout layout = parse(image(holes, "12345678"), storage);
  EXPECT_EQ(layout.hole_bytes, 5u);
  EXPECT_EQ(layout.trailing_bytes, 0u);
}

TEST(Safetensors, FaultsInOffsets) {
  const std::string data(16, 'x');
  const auto one = [&](const std::string& type, const std::string& shape, const std::string& offsets) {
    return parse_error(image(std::string("{") + entry("t", type, shape, offsets) + "}", data));
  };
  EXPECT_THAT(one("F32", "4", "8,4"), HasSubstr("backwards"));
  expect_words(one("F32", "4", "0,12"), {"'t'", "12 bytes", "needs 16"});
  EXPECT_THAT(one("F32", "5", "0,20"), HasSubstr("truncated"));
  EXPECT_THAT(one("U8", "16", "1,17"), HasSubstr("truncated"));
  EXPECT_THAT(one("U8", "16", "18446744073709551600,18446744073709551615"), HasSubstr("hold 15"));
  EXPECT_THAT(one("U8", "15", "18446744073709551600,18446744073709551615"), HasSubstr("2^64"));
  EXPECT_THAT(one("F32", "4", "0"), HasSubstr("2 numbers"));
  EXPECT_THAT(one("F32", "4", "0,16,32"), HasSubstr("2 numbers"));
  EXPECT_THAT(one("F32", "4", "-1,15"), HasSubstr("negative"));
  EXPECT_THAT(one("F32", "4", "0.5,16"), HasSubstr("whole number"));
  EXPECT_THAT(one("F32", "4", "0,18446744073709551616"), HasSubstr("whole number"));
  const std::string overlap = parse_error(
      image(std::string("{") + entry("p", "U8", "8", "0,8") + "," + entry("q", "U8", "8", "7,15") + "}", data));
  expect_words(overlap, {"'p'", "'q'", "overlap"});
}

TEST(Safetensors, OverflowingShapes) {
  const auto one = [&](const std::string& shape) {
    return parse_error(image(std::string("{") + entry("t", "F32", shape, "0,16") + "}", std::string(16, 'x')));
  };
  EXPECT_THAT(one("4611686018427387904,4"), HasSubstr("overflow"));
  EXPECT_THAT(one("4294967296,4294967296"), HasSubstr("overflow"));
  EXPECT_THAT(one("18446744073709551615"), HasSubstr("overflow"));
  EXPECT_THAT(one("2305843009213693953"), HasSubstr("overflow"));  // elements fit, bytes do not
  EXPECT_THAT(one("1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1"), HasSubstr("16 entries"));
}

TEST(Safetensors, FaultsInTheHeader) {
  const auto header = [&](const std::string& text) { return parse_error(image(text, "1234")); };
  EXPECT_THAT(header("[1]"), HasSubstr("does not start with"));
  EXPECT_THAT(header("{\"a\":"), HasSubstr("JSON"));
  EXPECT_THAT(header("{} x"), HasSubstr("JSON"));
  EXPECT_THAT(header("{\"a\":3}"), HasSubstr("must be an object"));
  EXPECT_THAT(header("{\"a\":{\"dtype\":\"U8\",\"shape\":[4]}}"), HasSubstr("'data_offsets' is missing"));
  EXPECT_THAT(header("{\"a\":{\"shape\":[4],\"data_offsets\":[0,4]}}"), HasSubstr("'dtype' is missing"));
  EXPECT_THAT(header("{\"a\":{\"dtype\":\"U8\",\"data_offsets\":[0,4]}}"), HasSubstr("'shape' is missing"));
  EXPECT_THAT(header("{\"a\":{\"dtype\":8,\"shape\":[4],\"data_offsets\":[0,4]}}"), HasSubstr("dtype"));
  EXPECT_THAT(header("{\"a\":{\"dtype\":\"U8\",\"shape\":[[4]],\"data_offsets\":[0,4]}}"), HasSubstr("a list"));
  EXPECT_THAT(header("{\"a\":{\"dtype\":\"U8\",\"shape\":4,\"data_offsets\":[0,4]}}"), HasSubstr("shape"));
  EXPECT_THAT(header("{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4],\"order\":\"C\"}}"),
              HasSubstr("'order'"));
  EXPECT_THAT(header(std::string("{") + entry("a", "F4", "4", "0,4") + "}"), HasSubstr("unknown dtype 'F4'"));
  EXPECT_THAT(header(std::string("{") + entry("a", "U8", "4", "0,4") + "," + entry("a", "U8", "4", "0,4") + "}"),
              HasSubstr("twice"));
  EXPECT_THAT(header("{\"a\":{\"dtype\":\"U8\",\"dtype\":\"U8\"}}"), HasSubstr("twice"));
  EXPECT_THAT(header("{\"__metadata__\":{\"a\":{}}}"), HasSubstr("must be text"));
  EXPECT_THAT(header(std::string("{") + std::string(100000, '[') + "}"), HasSubstr("JSON"));
  EXPECT_THAT(header(std::string("{\"a\":") + std::string(100000, '[') + "}"), HasSubstr("must be an object"));
}

TEST(Safetensors, UnreadableFiles) {
  const TempFolder folder;
  EXPECT_THAT(error_of([&] { SafetensorsFile::open(folder / "none.safetensors"); }),
              HasSubstr("cannot be read: No such file"));
  EXPECT_THAT(error_of([&] { SafetensorsFile::open(folder.path()); }), HasSubstr("not a regular file"));
}

TEST(SafetensorsDeathTest, AFileThatBecomesShorterIsNamed) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const TempFolder folder;
  const std::filesystem::path path = folder / "m.safetensors";
  FileBuilder builder;
  builder.add<float>("t", "F32", {1 << 16}, std::vector<float>(1 << 16, 1.5f));
  write_file(path, builder.build());
  const auto shorten = [&] {
    report_mapping_faults();
    const SafetensorsFile file = SafetensorsFile::open(path);
    std::filesystem::resize_file(path, 100);
    unsigned sum = 0;
    for (std::uint64_t i = 0; i < file.file_bytes(); ++i) sum += static_cast<unsigned char>(file.image()[i]);
    std::exit(sum == 0 ? 0 : 1);
  };
  EXPECT_EXIT(shorten(), ::testing::ExitedWithCode(3), "m.safetensors: cannot be read any more: it became shorter");
  // Any other fault ends the process as it did.
  const auto elsewhere = [] {
    report_mapping_faults();
    std::raise(SIGBUS);
  };
  EXPECT_EXIT(elsewhere(), ::testing::KilledBySignal(SIGBUS), "");
}

// A file that is still growing is refused as long as it is short, and read once it is whole.
TEST(Safetensors, GrowingFile) {
  const TempFolder folder;
  const std::string whole = valid();
  write_file(folder / "m.safetensors", whole.substr(0, whole.size() - 4));
  EXPECT_THAT(error_of([&] { SafetensorsFile::open(folder / "m.safetensors"); }), HasSubstr("still being written"));
  write_file(folder / "m.safetensors", whole);
  EXPECT_EQ(SafetensorsFile::open(folder / "m.safetensors").tensors().size(), 2u);
}

TEST(Safetensors, TypeNamesRoundTrip) {
  for (const char* name : {"BOOL", "U8", "I8", "U16", "I16", "F16", "BF16", "F8_E4M3", "F8_E5M2", "U32", "I32", "F32",
                           "U64", "I64", "F64"}) {
    ASSERT_TRUE(tensor_type_from(name).has_value()) << name;
    EXPECT_STREQ(to_string(*tensor_type_from(name)), name);
  }
  EXPECT_FALSE(tensor_type_from("bf16").has_value());
  EXPECT_EQ(element_bytes(TensorType::bf16), 2);
  EXPECT_EQ(element_bytes(TensorType::i64), 8);
}

}  // namespace
}  // namespace facet::test
