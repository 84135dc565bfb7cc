#include "csrc/cpu/gemm/kernel.hpp"
#include "csrc/cpu/gemm/tiled.hpp"
#include "csrc/cpu/gemm/tiles_amx.hpp"
#include "csrc/cpu/gemm/vector_avx512.hpp"

namespace nf12::cpu {

using AmxGemm = Tiled<Avx512, AmxTiles>;
const GemmKernel kGemmAmx = {AmxGemm::workspace_bytes, AmxGemm::run};

}  // namespace nf12::cpu
