#include <algorithm>

#include "csrc/gather/instances/gather.cpp"
#include "csrc/pack/instances/check.cpp"
#include "csrc/pack/instances/pack.cpp"
#include "csrc/unpack/instances/unpack.cpp"
#include "tests/standin/kernels.hpp"

namespace nf12::standin {
namespace {

int64_t experts_of(const TileSteps& steps, const PackedView& w) {
  return steps.tiles / (tile_rows(w.n) * tile_columns(w.k));
}
std::vector<Buffer> stack_buffers(const PackedStack& w, int64_t experts) {
  return weight_buffers(w.first, experts, w.payload_expert_stride_bytes, w.index_expert_stride);
}
template <typename Bf16>
int64_t dense_bytes(const DenseStack<Bf16>& dense, int64_t experts) {
  return 2 * ((experts - 1) * dense.expert_stride + (dense.n - 1) * dense.row_stride + dense.k);
}

std::vector<Buffer> unpack_buffers(const UnpackParams& p) {
  const int64_t experts = experts_of(p.steps, p.packed.first);
  std::vector<Buffer> buffers = stack_buffers(p.packed, experts);
  buffers.push_back(writable(p.out.weights, dense_bytes(p.out, experts), "out"));
  return buffers;
}

std::vector<Buffer> gather_buffers(const GatherParams& p) {
  std::vector<Buffer> buffers = weight_buffers(p.weight);
  buffers.push_back(read_only(p.ids, p.count * p.id_bytes, "ids"));
  buffers.push_back(writable(p.out, 2 * ((p.count - 1) * p.out_row_stride + p.weight.k), "out"));
  return buffers;
}

std::vector<Buffer> check_buffers(const CheckParams& p) {
  std::vector<Buffer> buffers =
      stack_buffers(p.packed, p.steps.tiles / (int64_t{p.steps.rows} * p.steps.columns));
  buffers.push_back(writable(p.first_bad, 4, "first_bad"));
  return buffers;
}

// ---- pack: each pass has its own ----

Buffer source_buffer(const PackParams& p) {
  const int64_t experts = p.steps.tiles / (int64_t{p.steps.rows} * p.steps.columns);
  return read_only(p.source.weights, dense_bytes(p.source, experts), "source");
}
// Quads that the words of all tiles name.
int64_t table_bytes(const PackParams& p) {
  int64_t quads = 0;
  for (uint32_t i = 0; i < p.steps.tiles; ++i) {
    const IndexWord word = IndexWord::from_bits(p.index[i]);
    quads = std::max(quads, int64_t{word.quad} + word.quads());
  }
  return 16 * quads;
}

std::vector<Buffer> survey_buffers(const PackParams& p) {
  return {source_buffer(p), writable(p.exponents, 8 * kExponents, "exponents"),
          writable(p.subnormal_bits, 4, "subnormal_bits")};
}
std::vector<Buffer> count_buffers(const PackParams& p) {
  return {source_buffer(p), writable(p.index, int64_t{4} * p.steps.tiles, "index"),
          writable(p.hashes, int64_t{8} * p.steps.tiles, "hashes")};
}
std::vector<Buffer> compare_buffers(const PackParams& p) {
  return {source_buffer(p), read_only(p.list, int64_t{8} * p.list_length, "list"),
          writable(p.differs, int64_t{4} * p.list_length, "differs")};
}
std::vector<Buffer> encode_buffers(const PackParams& p) {
  return {source_buffer(p), read_only(p.index, int64_t{4} * p.steps.tiles, "index"),
          writable(p.payload, int64_t{kTileBytes} * p.steps.tiles, "payload"),
          writable(p.escapes, table_bytes(p), "escapes")};
}
std::vector<Buffer> raw_buffers(const PackParams& p) {
  return {source_buffer(p), read_only(p.index, int64_t{4} * p.steps.tiles, "index"),
          read_only(p.list, int64_t{4} * p.list_length, "list"),
          writable(p.escapes, table_bytes(p), "escapes")};
}

}  // namespace

std::vector<Kernel> whole_weight_kernels() {
#define NF12_MODEL(Params, kernel, buffers, waves) \
  model_of<Params, nf12_##kernel, buffers>("nf12_" #kernel, 32 * waves)
  return {NF12_MODEL(UnpackParams, unpack_a16, unpack_buffers, kUnpackWaves),
          NF12_MODEL(UnpackParams, unpack_a4, unpack_buffers, kUnpackWaves),
          NF12_MODEL(UnpackParams, unpack_a2, unpack_buffers, kUnpackWaves),
          NF12_MODEL(GatherParams, gather_a16, gather_buffers, kGatherWaves),
          NF12_MODEL(GatherParams, gather_a4, gather_buffers, kGatherWaves),
          NF12_MODEL(GatherParams, gather_a2, gather_buffers, kGatherWaves),
          NF12_MODEL(CheckParams, check, check_buffers, kCheckWaves),
          NF12_MODEL(PackParams, pack_survey_a16, survey_buffers, kPackWaves),
          NF12_MODEL(PackParams, pack_survey_a2, survey_buffers, kPackWaves),
          NF12_MODEL(PackParams, pack_count_a16, count_buffers, kPackWaves),
          NF12_MODEL(PackParams, pack_count_a2, count_buffers, kPackWaves),
          NF12_MODEL(PackParams, pack_encode_a16, encode_buffers, kPackWaves),
          NF12_MODEL(PackParams, pack_encode_a2, encode_buffers, kPackWaves),
          NF12_MODEL(PackParams, pack_compare, compare_buffers, kPackWaves),
          NF12_MODEL(PackParams, pack_raw, raw_buffers, kPackWaves)};
#undef NF12_MODEL
}

}  // namespace nf12::standin
