#include "tests/host_model/machine.hpp"

#include <cstring>

#include "csrc/arch/hopper.hpp"
#include "tests/host_model/maps.hpp"

namespace nf12::test {

const bool kMatrixOrderIsKnown = true;
const bool kMachineIsFast = false;
const int kMachineBlocks = 3;  // one after the other

void run_kernel(const arch::host::Launch& launch, std::span<const std::byte>,
                const std::function<void()>& body) {
  arch::host::run(launch, body);
}

void run_kernel(const arch::host::Launch& launch, std::span<std::byte> arguments,
                std::span<const MapOfBuffer> maps, const std::function<void()>& body) {
  for (const auto& [offset, l] : maps) {
    const int row_bytes = l.box_columns * l.element_bytes;
    if (reinterpret_cast<uintptr_t>(l.base) % 16 != 0 || l.row_stride_bytes % 16 != 0 ||
        l.row_stride_bytes >= int64_t{1} << 40 || l.box_columns > 256 || l.box_rows > 256 ||
        row_bytes % 16 != 0 || (l.permuted && row_bytes != 128))
      throw arch::host::Report(launch.kernel + ": no tensor unit takes such a map");
    const arch::host::Map map = {l.base,          l.columns,     l.rows,     l.row_stride_bytes,
                                 l.element_bytes, l.box_columns, l.box_rows, l.permuted};
    static_assert(sizeof(map) <= sizeof(TensorMap));
    std::memcpy(&arguments[offset], &map, sizeof(map));
  }
  arch::host::run(launch, body);
}

}  // namespace nf12::test
