#include "tests/standin/code_object.hpp"

#include <elf.h>

#include <cstring>

namespace nf12::standin {
namespace {

constexpr int kMachineAmdgpu = 224;  // EM_AMDGPU
// EF_AMDGPU_MACH, the low byte of e_flags.
constexpr struct {
  uint32_t number;
  const char* name;
} kArchs[] = {{0x41, "gfx1100"}, {0x48, "gfx1200"}, {0x4E, "gfx1201"}, {0x49, "gfx1250"}};

}  // namespace

bool CodeObject::is_text() const {
  return std::strncmp(image_, kTextHeader, std::strlen(kTextHeader)) == 0;
}

std::string CodeObject::line(int number) const {
  const char* begin = image_;
  for (; number > 0; --number) begin = std::strchr(begin, '\n') + 1;
  return {begin, std::strcspn(begin, "\n")};
}

std::string CodeObject::arch() const {
  if (is_text()) return line(1);
  Elf64_Ehdr header;
  std::memcpy(&header, image_, sizeof(header));
  if (std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 || header.e_machine != kMachineAmdgpu)
    return "";
  for (const auto& arch : kArchs)
    if (arch.number == (header.e_flags & 0xFF)) return arch.name;
  return "gfx of e_flags " + std::to_string(header.e_flags);
}

std::optional<Descriptor> CodeObject::find(const std::string& kernel) const {
  if (is_text()) {
    if (!kernel.starts_with("nf12_" + line(2))) return std::nullopt;
    return Descriptor{0, 0};
  }
  Elf64_Ehdr header;
  std::memcpy(&header, image_, sizeof(header));
  const auto* sections = reinterpret_cast<const Elf64_Shdr*>(image_ + header.e_shoff);
  for (int i = 0; i < header.e_shnum; ++i) {
    if (sections[i].sh_type != SHT_DYNSYM) continue;
    const auto* symbols = reinterpret_cast<const Elf64_Sym*>(image_ + sections[i].sh_offset);
    const char* names = image_ + sections[sections[i].sh_link].sh_offset;
    for (size_t j = 0; j < sections[i].sh_size / sizeof(Elf64_Sym); ++j) {
      if (kernel + ".kd" != names + symbols[j].st_name) continue;
      const Elf64_Shdr& holder = sections[symbols[j].st_shndx];
      uint32_t words[3];  // shared, private and argument bytes
      std::memcpy(words, image_ + holder.sh_offset + (symbols[j].st_value - holder.sh_addr),
                  sizeof(words));
      return Descriptor{words[0], words[2]};
    }
  }
  return std::nullopt;
}

}  // namespace nf12::standin
