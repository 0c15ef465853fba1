#include "plugin/elf_stamp.h"

#include <elf.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <system_error>
#include <vector>

#include "facet/abi/plugin.h"
#include "facet/base/error.h"

namespace facet {

namespace {

#if defined(__aarch64__)
constexpr std::uint16_t kHostMachine = EM_AARCH64;
#else
constexpr std::uint16_t kHostMachine = EM_X86_64;
#endif
// Far above any real stamp (256 bytes); bounds what a broken size field can make us read.
constexpr std::uint64_t kMaxStamp = 4096;
constexpr const char* kCopyAgain = "build or copy the file again";

std::string machine_name(std::uint16_t machine) {
  switch (machine) {
    case EM_X86_64:
      return "x86_64";
    case EM_AARCH64:
      return "aarch64";
    case EM_386:
      return "i386";
    case EM_ARM:
      return "arm";
    case EM_RISCV:
      return "riscv";
    case EM_PPC64:
      return "ppc64";
    default:
      return fmt::format("machine {}", machine);
  }
}

// A file with bounds: read() refuses whatever lies outside.
class BoundedFile {
 public:
  explicit BoundedFile(const std::filesystem::path& file) : file_(file) {
    struct stat facts {};
    if (::stat(file.c_str(), &facts) != 0) refuse_errno("cannot be found");
    if (!S_ISREG(facts.st_mode))
      throw_error(ErrorKind::plugin, "{}: type is {}, needed is a regular file; name the shared library itself",
                  file.string(), S_ISDIR(facts.st_mode) ? "directory" : "special file");
    descriptor_ = ::open(file.c_str(), O_RDONLY | O_CLOEXEC);
    if (descriptor_ < 0) refuse_errno("cannot be read");
    size_ = static_cast<std::uint64_t>(facts.st_size);
  }
  ~BoundedFile() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  BoundedFile(const BoundedFile&) = delete;
  BoundedFile& operator=(const BoundedFile&) = delete;

  std::uint64_t size() const { return size_; }

  void require(std::uint64_t offset, std::uint64_t bytes, const char* what) const {
    if (offset > size_ || bytes > size_ - offset)
      throw_error(ErrorKind::plugin, "{}: truncated: {} needs bytes {} to {}+{}, the file has {} bytes; {}",
                  file_.string(), what, offset, offset, bytes, size_, kCopyAgain);
  }

  void read(std::uint64_t offset, void* out, std::uint64_t bytes, const char* what) const {
    require(offset, bytes, what);
    auto* target = static_cast<char*>(out);
    while (bytes > 0) {
      const ssize_t got = ::pread(descriptor_, target, bytes, static_cast<off_t>(offset));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) refuse_errno("cannot be read");
      if (got == 0)
        throw_error(ErrorKind::plugin, "{}: truncated while reading {}; {}", file_.string(), what, kCopyAgain);
      target += got;
      offset += static_cast<std::uint64_t>(got);
      bytes -= static_cast<std::uint64_t>(got);
    }
  }

 private:
  [[noreturn]] void refuse_errno(const char* what) const {
    const int code = errno;
    throw_error(ErrorKind::plugin, "{}: {}: {}; check the path and its permissions", file_.string(), what,
                std::generic_category().message(code));
  }

  const std::filesystem::path& file_;
  int descriptor_ = -1;
  std::uint64_t size_ = 0;
};

void check_magic(const BoundedFile& in, const std::filesystem::path& file) {
  if (in.size() == 0)
    throw_error(ErrorKind::plugin, "{}: size is 0 bytes, needed is an ELF shared library; {}", file.string(),
                kCopyAgain);
  unsigned char magic[SELFMAG] = {};
  in.read(0, magic, std::min<std::uint64_t>(in.size(), SELFMAG), "the ELF magic");
  if (std::memcmp(magic, ELFMAG, SELFMAG) != 0)
    throw_error(ErrorKind::plugin,
                "{}: the first bytes are {:02x} {:02x} {:02x} {:02x}, a shared library starts with 7f 45 4c 46 (ELF); "
                "name a compiled plugin",
                file.string(), magic[0], magic[1], magic[2], magic[3]);
}

Elf64_Ehdr read_header(const BoundedFile& in, const std::filesystem::path& file) {
  check_magic(in, file);
  Elf64_Ehdr header{};
  in.read(0, &header, sizeof header, "the ELF header");
  if (header.e_ident[EI_CLASS] != ELFCLASS64)
    throw_error(ErrorKind::plugin, "{}: ELF class is {}, this program needs 64-bit (2); build the plugin for {}",
                file.string(), header.e_ident[EI_CLASS], machine_name(kHostMachine));
  if (header.e_ident[EI_DATA] != ELFDATA2LSB)
    throw_error(ErrorKind::plugin, "{}: ELF byte order is {}, this program needs little endian (1); build it for {}",
                file.string(), header.e_ident[EI_DATA], machine_name(kHostMachine));
  if (header.e_machine != kHostMachine)
    throw_error(ErrorKind::plugin, "{}: ELF machine is {}, this program runs on {}; build the plugin for {}",
                file.string(), machine_name(header.e_machine), machine_name(kHostMachine), machine_name(kHostMachine));
  if (header.e_type != ET_DYN)
    throw_error(ErrorKind::plugin, "{}: ELF type is {}, a shared library has {} (DYN); link the plugin with -shared",
                file.string(), header.e_type, static_cast<int>(ET_DYN));
  return header;
}

void check_segments(const BoundedFile& in, const Elf64_Ehdr& header, const std::filesystem::path& file) {
  if (header.e_phnum == 0 || header.e_phentsize != sizeof(Elf64_Phdr))
    throw_error(ErrorKind::plugin, "{}: {} program headers of {} bytes, needed is at least 1 of {}; {}", file.string(),
                header.e_phnum, header.e_phentsize, sizeof(Elf64_Phdr), kCopyAgain);
  std::vector<Elf64_Phdr> segments(header.e_phnum);
  in.read(header.e_phoff, segments.data(), segments.size() * sizeof(Elf64_Phdr), "the program header table");
  for (const Elf64_Phdr& segment : segments) {
    if (segment.p_type == PT_LOAD) in.require(segment.p_offset, segment.p_filesz, "a loaded segment");
  }
}

std::vector<Elf64_Shdr> read_sections(const BoundedFile& in, const Elf64_Ehdr& header) {
  if (header.e_shoff == 0 || header.e_shnum == 0 || header.e_shentsize != sizeof(Elf64_Shdr)) return {};
  std::vector<Elf64_Shdr> sections(header.e_shnum);
  in.read(header.e_shoff, sections.data(), sections.size() * sizeof(Elf64_Shdr), "the section header table");
  return sections;
}

bool has_name(const BoundedFile& in, const Elf64_Shdr& names, const Elf64_Shdr& section, const char* wanted) {
  const std::uint64_t length = std::strlen(wanted) + 1;
  if (section.sh_name > names.sh_size || length > names.sh_size - section.sh_name) return false;
  char name[64] = {};
  if (length > sizeof name) return false;
  in.read(names.sh_offset + section.sh_name, name, length, "a section name");
  return std::memcmp(name, wanted, length) == 0;
}

}  // namespace

std::string read_stamp(const std::filesystem::path& file) {
  const BoundedFile in(file);
  const Elf64_Ehdr header = read_header(in, file);
  check_segments(in, header, file);
  const std::vector<Elf64_Shdr> sections = read_sections(in, header);
  if (header.e_shstrndx < sections.size()) {
    const Elf64_Shdr& names = sections[header.e_shstrndx];
    in.require(names.sh_offset, names.sh_size, "the section name table");
    for (const Elf64_Shdr& section : sections) {
      if (section.sh_type != SHT_PROGBITS || !has_name(in, names, section, abi::kStampSection)) continue;
      in.require(section.sh_offset, section.sh_size, "the build stamp");
      std::string text(std::min(section.sh_size, kMaxStamp), '\0');
      in.read(section.sh_offset, text.data(), text.size(), "the build stamp");
      const std::size_t end = text.find('\0');
      if (end != std::string::npos && text.compare(0, std::strlen(abi::kStampMagic), abi::kStampMagic) == 0)
        return text.substr(0, end);
      throw_error(ErrorKind::plugin,
                  "{}: section {} holds '{}', a build stamp starts with '{}'; export the plugin with "
                  "FACET_EXPORT_PLUGIN",
                  file.string(), abi::kStampSection, text.substr(0, std::min<std::size_t>(end, 40)), abi::kStampMagic);
    }
  }
  throw_error(ErrorKind::plugin,
              "{}: section {} is absent, a Facet plugin has one with '{}...'; this is no plugin, or one that was not "
              "exported with FACET_EXPORT_PLUGIN",
              file.string(), abi::kStampSection, abi::kStampMagic);
}

}  // namespace facet
