// A code object as the driver gets it: an ELF file for one AMD GPU, or the text that stands in for
// one in a build without GPU targets.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

namespace nf12::standin {

// What a kernel's descriptor says of it.
struct Descriptor {
  uint32_t shared_bytes;    // of a block, fixed when compiled
  uint32_t argument_bytes;  // hidden arguments included
};

class CodeObject {
 public:
  explicit CodeObject(const void* image) : image_(static_cast<const char*>(image)) {}

  std::string arch() const;  // "gfx1201"; empty: no code object
  bool is_text() const;
  // None if the code object has no such kernel; of a text all that begin with its unit.
  std::optional<Descriptor> find(const std::string& kernel) const;

 private:
  std::string line(int number) const;  // of a text

  const char* image_;
};

inline constexpr const char* kTextHeader = "nf12 stand-in code object\n";  // then arch, unit

}  // namespace nf12::standin
