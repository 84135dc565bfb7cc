// What a build without GPU targets carries; weak, so that a generated definition takes its place.
#include "csrc/runtime/code_objects.hpp"

namespace nf12::runtime {

[[gnu::weak]] std::span<const CodeObject> code_objects() { return {}; }

}  // namespace nf12::runtime
