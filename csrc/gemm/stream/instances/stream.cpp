// Every instance of the streaming kernel: nf12_gemm_stream_t8, _t16 and _t32, for NVIDIA.
// Compiled once per GPU target (see targets.json), never by the host compiler of the library.
#include "csrc/gemm/stream/instances/configs.hpp"
#include "csrc/gemm/stream/kernel.hpp"

namespace nf12 {

#define NF12_STREAM(tokens)                             \
  NF12_KERNEL(stream_config(tokens).waves* arch::kWave) \
  nf12_gemm_stream_t##tokens(StreamParams p) { stream_gemm<stream_config(tokens)>(p); }
NF12_STREAM(8)
NF12_STREAM(16)
NF12_STREAM(32)

}  // namespace nf12
