// The reader's rules on a GPU: the kernel finds the earliest bad tile, the host copies what that
// one consists of and asks which rule it breaks.
#include <vector>

#include "csrc/gpu/gpu.hpp"
#include "csrc/pack/check_launch.hpp"

namespace nf12::gpu {

Violation check(Queue& queue, const PackedStack& packed, int64_t experts, bool is_stack,
                uint32_t* scratch) {
  CheckParams params = {packed, {}, scratch};
  const int64_t blocks = check_launch(params, experts);
  queue.fill_words(scratch, kNoTile, 1);
  queue.launch(runtime::Kernel::check, blocks, 1, kCheckWaves * arch::kWave, params);
  uint32_t number = kNoTile;
  queue.to_host(&number, scratch, sizeof(number));
  if (number == kNoTile) return {};

  const TileSteps& grid = params.steps;
  const auto columns = static_cast<uint32_t>(grid.columns), rows = static_cast<uint32_t>(grid.rows);
  const int c = static_cast<int>(number % columns), r = static_cast<int>(number / columns % rows);
  const int x = static_cast<int>(number / columns / rows);
  uint8_t tile[kTileBytes];
  uint32_t word = 0;
  queue.to_host(tile, packed.tile(x, r, c), sizeof(tile));
  queue.to_host(&word, packed.index_word(x, r, c), sizeof(word));
  const TileQuads named = quads_of(word, packed.first.quads);
  std::vector<uint32_t> quads(int64_t{named.count} * kEntriesPerQuad);
  if (!quads.empty())
    queue.to_host(quads.data(), packed.first.escapes + int64_t{named.first} * kEntriesPerQuad,
                  quads.size() * sizeof(uint32_t));
  return violation_of(params, number, tile, word, quads.data(), is_stack);
}

}  // namespace nf12::gpu
