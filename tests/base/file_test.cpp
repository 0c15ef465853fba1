// Files of unknown origin: only regular ones are read, and nothing is waited for.
#include "facet/base/file.h"

#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

#include "facet/base/json_keys.h"

namespace facet {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class FileTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::path(testing::TempDir()) / fmt::format("facet_file_test_{}", getpid());
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string refusal(const std::string& name) const {
    try {
      read_file(folder_ / name, ErrorKind::checkpoint);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::checkpoint);
      return error.message();
    }
    ADD_FAILURE() << name << " was read";
    return {};
  }
  std::filesystem::path folder_;
};

TEST_F(FileTest, ReadsAllBytes) {
  const std::string bytes("a\0b\n", 4);
  std::ofstream(folder_ / "f", std::ios::binary) << bytes;
  EXPECT_EQ(read_file(folder_ / "f", ErrorKind::run), bytes);
  std::ofstream(folder_ / "empty");
  EXPECT_EQ(read_file(folder_ / "empty", ErrorKind::run), "");
  // Files of the system say a size of 0.
  EXPECT_THAT(read_file("/proc/self/status", ErrorKind::run), AllOf(HasSubstr("Name:"), HasSubstr("Threads:")));
  EXPECT_EQ(read_file_if_there(folder_ / "f", ErrorKind::run), bytes);
  EXPECT_EQ(read_file_if_there(folder_ / "absent", ErrorKind::run), std::nullopt);
}

TEST_F(FileTest, RefusesWhatIsNoRegularFileAndSaysWhy) {
  ASSERT_EQ(mkfifo((folder_ / "pipe").c_str(), 0600), 0);
  EXPECT_THAT(refusal("pipe"), AllOf(HasSubstr("pipe: cannot be read"), HasSubstr("not a regular file")));
  std::filesystem::create_directory(folder_ / "folder");
  EXPECT_THAT(refusal("folder"), HasSubstr("it is a folder"));
  EXPECT_THAT(refusal("absent"), HasSubstr("No such file"));
  std::filesystem::create_symlink("nowhere", folder_ / "link");
  EXPECT_THROW(read_file_if_there(folder_ / "link", ErrorKind::run), Error);
}

TEST(JsonKeys, OneObjectHoldsAKeyOnce) {
  const auto refuse = [](const std::string& text) { refuse_repeated_keys(text, ErrorKind::usage, "f:3"); };
  refuse(R"({"a":{"b":1},"c":[{"b":1},{"b":2}],"b":{"a":1}})");
  refuse("{\"a\":");  // the parser's business
  for (const char* text : {R"({"a":1,"a":2})", R"([{"x":{"y":{}},"a":{},"\u0061":0}])"}) {
    try {
      refuse(text);
      ADD_FAILURE() << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::usage);
      EXPECT_THAT(error.message(), HasSubstr("f:3: 'a' occurs twice in one object"));
    }
  }
}

}  // namespace
}  // namespace facet
