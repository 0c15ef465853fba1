// Files that are no plugin at all: refused from their bytes, before the system's loader sees them.
#include <elf.h>
#include <sys/stat.h>

#include <cstring>
#include <random>

#include "plugin_fixture.h"

namespace facet {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class ElfFileTest : public testing_support::PluginTest {};

TEST_F(ElfFileTest, TextFileNamedSo) {
  const fs::path file = write("notes.so", "plugins are great\n");
  EXPECT_THAT(refusal_of(file), AllOf(HasSubstr(file.string()), HasSubstr("70 6c 75 67"), HasSubstr("7f 45 4c 46"),
                                      HasSubstr("name a compiled plugin")));
}

TEST_F(ElfFileTest, EmptyFile) {
  const fs::path file = write("empty.so", "");
  EXPECT_THAT(refusal_of(file),
              AllOf(HasSubstr(file.string()), HasSubstr("0 bytes"), HasSubstr("build or copy the file again")));
}

TEST_F(ElfFileTest, MissingFileDirectoryAndUnreadableFile) {
  EXPECT_THAT(refusal_of(folder_ / "absent.so"), AllOf(HasSubstr("absent.so"), HasSubstr("No such file")));
  fs::create_directories(folder_ / "folder.so");
  EXPECT_THAT(refusal_of(folder_ / "folder.so"), AllOf(HasSubstr("directory"), HasSubstr("regular file")));
  ASSERT_EQ(::mkfifo((folder_ / "pipe.so").c_str(), 0600), 0);
  EXPECT_THAT(refusal_of(folder_ / "pipe.so"), AllOf(HasSubstr("special file"), HasSubstr("regular file")));
  if (::geteuid() != 0) {
    const fs::path file = copy("scheduler_minimal", "secret.so");
    fs::permissions(file, fs::perms::none);
    EXPECT_THAT(refusal_of(file), AllOf(HasSubstr(file.string()), HasSubstr("Permission denied")));
  }
}

TEST_F(ElfFileTest, OtherMachineClassOrderAndType) {
  const std::string good = read(testing_support::fixture("scheduler_minimal"));
  const auto patched = [&](const char* name, std::size_t at, std::uint16_t value, std::size_t bytes) {
    std::string image = good;
    std::memcpy(image.data() + at, &value, bytes);
    return refusal_of(write(name, image));
  };
  EXPECT_THAT(
      patched("machine.so", offsetof(Elf64_Ehdr, e_machine), EM_PPC64, 2),
      AllOf(HasSubstr("machine is ppc64"), HasSubstr("this program runs on"), HasSubstr("build the plugin for")));
  EXPECT_THAT(patched("class.so", EI_CLASS, ELFCLASS32, 1), AllOf(HasSubstr("class is 1"), HasSubstr("64-bit (2)")));
  EXPECT_THAT(patched("order.so", EI_DATA, ELFDATA2MSB, 1),
              AllOf(HasSubstr("byte order is 2"), HasSubstr("little endian (1)")));
  EXPECT_THAT(patched("type.so", offsetof(Elf64_Ehdr, e_type), ET_REL, 2),
              AllOf(HasSubstr("type is 1"), HasSubstr("3 (DYN)"), HasSubstr("-shared")));
}

TEST_F(ElfFileTest, TruncatedAnywhere) {
  const std::string good = read(testing_support::fixture("scheduler_minimal"));
  for (std::size_t eighth = 1; eighth < 8; ++eighth) {
    const std::size_t size = good.size() * eighth / 8;
    const std::string text = refusal_of(write("cut_" + std::to_string(eighth) + ".so", good.substr(0, size)));
    EXPECT_THAT(text, AllOf(HasSubstr("truncated"), HasSubstr("the file has " + std::to_string(size) + " bytes"),
                            HasSubstr("build or copy the file again")));
  }
  EXPECT_THAT(refusal_of(write("header.so", good.substr(0, 20))), HasSubstr("truncated"));
  EXPECT_THAT(refusal_of(write("two.so", good.substr(0, 2))), HasSubstr("name a compiled plugin"));
}

// Whatever the headers say: an Error or a plugin, never a crash. Segments are left alone, since what lies behind a good
// stamp and whole segments is the system loader's to judge.
TEST_F(ElfFileTest, GarbageInSectionHeaders) {
  const std::string good = read(testing_support::fixture("other_layout"));
  Elf64_Ehdr header;
  std::memcpy(&header, good.data(), sizeof header);
  const std::uint32_t seed = 20240613;
  std::mt19937 random(seed);
  const std::size_t table = header.e_shoff;
  const std::size_t bytes = std::size_t{header.e_shnum} * sizeof(Elf64_Shdr);
  for (int round = 0; round < 200; ++round) {
    std::string image = good;
    for (int change = 0; change < 8; ++change)
      image[table + random() % bytes] = static_cast<char>(random() % 4 == 0 ? 0xff : random());
    if (round % 4 == 0) image[offsetof(Elf64_Ehdr, e_shstrndx)] = static_cast<char>(random());
    const std::string text = refusal_of(write("garbage.so", image));
    EXPECT_THAT(text, HasSubstr("garbage.so")) << "seed " << seed << " round " << round;
  }
}

}  // namespace
}  // namespace facet
