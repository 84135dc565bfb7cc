// The compiled forms of the packing kernels, by the alignment of the source's rows in bytes.
// Compiled once per GPU target (see targets.json), never by the host compiler of the library.
#include "csrc/pack/encode.hpp"
#include "csrc/pack/survey.hpp"

namespace nf12 {

#define NF12_PACK(kernel, body)        \
  NF12_KERNEL(kPackWaves* arch::kWave) \
  nf12_pack_##kernel(PackParams p) { body(p); }
NF12_PACK(survey_a16, survey<16>)
NF12_PACK(survey_a2, survey<2>)
NF12_PACK(count_a16, count_escapes<16>)
NF12_PACK(count_a2, count_escapes<2>)
NF12_PACK(encode_a16, encode<16>)
NF12_PACK(encode_a2, encode<2>)
NF12_PACK(compare, compare_tiles)
NF12_PACK(raw, write_raw)

}  // namespace nf12
