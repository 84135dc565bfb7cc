// Packing on a GPU, by the protocol of csrc/pack/launch.hpp: kernels read the weights, the host
// decides in between what needs all tiles at once. It waits for the device each time.
#include <algorithm>
#include <vector>

#include "csrc/cpu/pack_base.hpp"
#include "csrc/gpu/gpu.hpp"
#include "csrc/pack/launch.hpp"

namespace nf12::gpu {
namespace {

using runtime::Kernel;

// Of the survey, as the kernel adds to it and as one copy brings it.
struct Survey {
  uint64_t exponents[kExponents];
  uint32_t subnormal_bits;
};

// What the kernels need beside the results, one part behind the other.
struct Workspace {
  Survey* survey;
  uint32_t* hashes;   // [tiles, 2]
  uint32_t* list;     // [tiles, 2], the most that compare is asked about
  uint32_t* differs;  // [tiles]

  static constexpr size_t kBytesATile = (2 + 2 + 1) * sizeof(uint32_t);

  Workspace(void* memory, int64_t tiles)
      : survey(static_cast<Survey*>(memory)),
        hashes(reinterpret_cast<uint32_t*>(survey + 1)),
        list(hashes + 2 * tiles),
        differs(list + 2 * tiles) {}
};

int64_t tiles_of(const PackSource& source) {
  return source.experts * tile_rows(source.weights.n) * tile_columns(source.weights.k);
}

// The launches of one packing.
class Packing {
 public:
  Packing(Queue& queue, const PackSource& source, uint32_t* index, void* workspace)
      : queue_(queue),
        experts_(source.experts),
        tiles_(tiles_of(source)),
        workspace_(workspace, tiles_),
        aligned_(pack_alignment(source.weights, source.experts) == 16) {
    params_.source = source.weights;
    params_.exponents = workspace_.survey->exponents;
    params_.subnormal_bits = &workspace_.survey->subnormal_bits;
    params_.index = index;
    params_.hashes = workspace_.hashes;
    params_.list = workspace_.list;
    params_.differs = workspace_.differs;
  }

  cpu::ExponentSurvey survey() {
    queue_.zero(workspace_.survey, sizeof(Survey));
    launch(Kernel::pack_survey_a16, Kernel::pack_survey_a2, kSurveyMostBlocks);
    Survey seen;
    queue_.to_host(&seen, workspace_.survey, sizeof(Survey));
    take_off_padding(experts_, params_.source.n, params_.source.k, seen.exponents);
    cpu::ExponentSurvey survey;
    std::copy_n(seen.exponents, kExponents, survey.counts);
    survey.subnormal_bits = seen.subnormal_bits;
    return survey;
  }

  // Escapes of each tile.
  std::vector<uint32_t> count(int base) {
    params_.base = base;
    launch(Kernel::pack_count_a16, Kernel::pack_count_a2, kPackMostBlocks);
    std::vector<uint32_t> counts(static_cast<size_t>(tiles_));
    queue_.to_host(counts.data(), params_.index, counts.size() * sizeof(uint32_t));
    return counts;
  }

  // Of the raw tiles among them.
  RawOwners find_owners(const std::vector<uint32_t>& counts) {
    std::vector<uint64_t> hashes;
    if (std::ranges::any_of(counts, [](uint32_t count) { return count > kMaxListed; })) {
      hashes.resize(counts.size());
      queue_.to_host(hashes.data(), workspace_.hashes, hashes.size() * sizeof(uint64_t));
    }
    RawOwners owners(counts.data(), hashes.data(), static_cast<uint32_t>(tiles_));
    while (!owners.pairs().empty()) owners.answer(compare(owners.pairs()).data());
    return owners;
  }

  void upload(const std::vector<uint32_t>& words, const std::vector<uint32_t>& owners) {
    queue_.to_device(params_.index, words.data(), words.size() * sizeof(uint32_t));
    if (!owners.empty())
      queue_.to_device(workspace_.list, owners.data(), owners.size() * sizeof(uint32_t));
    queue_.wait();
  }

  void encode(int base, uint8_t* payload, uint32_t* escapes) {
    params_.base = base;
    params_.payload = payload;
    params_.escapes = escapes;
    launch(Kernel::pack_encode_a16, Kernel::pack_encode_a2, kPackMostBlocks);
  }

  // The tables of the owners that were uploaded.
  void write_raw(uint32_t owners) {
    if (owners != 0) launch_list(Kernel::pack_raw, owners);
  }

 private:
  void launch(Kernel aligned, Kernel unaligned, int64_t most_blocks) {
    const int64_t blocks = pack_blocks(tiles_, most_blocks);
    set_pack_steps(params_, experts_, blocks);
    queue_.launch(aligned_ ? aligned : unaligned, blocks, 1, kPackThreads, params_);
  }

  void launch_list(Kernel kernel, uint32_t length) {
    const int64_t blocks = pack_blocks(length, kPackMostBlocks);
    set_pack_steps(params_, experts_, blocks);
    params_.list_length = length;
    params_.list_waves = static_cast<uint32_t>(blocks * kPackWaves);
    queue_.launch(kernel, blocks, 1, kPackThreads, params_);
  }

  // For each pair of tiles 0 if they hold the same weights.
  std::vector<uint32_t> compare(const std::vector<uint32_t>& pairs) {
    queue_.to_device(workspace_.list, pairs.data(), pairs.size() * sizeof(uint32_t));
    std::vector<uint32_t> differs(pairs.size() / 2);
    launch_list(Kernel::pack_compare, static_cast<uint32_t>(differs.size()));
    queue_.to_host(differs.data(), workspace_.differs, differs.size() * sizeof(uint32_t));
    return differs;
  }

  static constexpr int kPackThreads = kPackWaves * arch::kWave;

  Queue& queue_;
  int64_t experts_, tiles_;
  Workspace workspace_;
  bool aligned_;
  PackParams params_ = {};
};

}  // namespace

size_t pack_workspace_bytes(const PackSource& source) {
  return sizeof(Survey) + static_cast<size_t>(tiles_of(source)) * Workspace::kBytesATile;
}

PackPlan plan_pack(Queue& queue, const PackSource& source, int base, uint32_t* index,
                   void* workspace) {
  Packing packing(queue, source, index, workspace);
  const cpu::ExponentSurvey survey = packing.survey();
  if (base < 0) base = cpu::choose_base(survey);
  if (!cpu::base_keeps_bits(survey, base)) return {cpu::PackStatus::kBaseLosesBits, base, 0, 0};
  std::vector<uint32_t> words = packing.count(base);
  const RawOwners owners = packing.find_owners(words);
  const TablePlan table = assign_words(owners, words.data(), static_cast<uint32_t>(words.size()));
  if (table.quads > int64_t{kMaxQuads})
    return {cpu::PackStatus::kTableTooLarge, base, table.quads, 0};
  packing.upload(words, table.owners);
  return {cpu::PackStatus::kOk, base, table.quads, static_cast<uint32_t>(table.owners.size())};
}

void write_pack(Queue& queue, const PackSource& source, const PackPlan& plan,
                const cpu::PackResult& result, void* workspace) {
  Packing packing(queue, source, result.index, workspace);
  packing.encode(plan.base, result.payload, result.escapes);
  packing.write_raw(plan.raw_owners);
}

}  // namespace nf12::gpu
