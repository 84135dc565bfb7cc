// What a block of the wide kernel does, piece by piece. Pure: every wave walks it for itself, and
// so does a test.
//
//   tiles 0 .. shared - 1    their k-blocks, in order, shared out: one stretch a block, which takes
//                            it from its end to its begin
//   the rest                 whole ones, every p.blocks-th
//
//   k-blocks   | tile 0          | tile 1          | tile 2          |
//   blocks     | 0         | 1         | 2         | 3          | ..
//                                                     1 begins with what 2 needs of tile 1
//
// Stretches are alike, or, where there are two blocks a tile or more (p.sharers), of one tile each:
// no block then both leaves sums and gathers others', and an owner multiplies while they come.
//
//   blocks     | 0     | 1       | 2     | 3       | ..
//
// The block with the last k-block of a tile owns it and adds up the others' sums. It needs those of
// blocks with lower numbers only, and each of these leaves them first of all: nobody waits for a
// block that has not started, as long as blocks start in order.
#pragma once
#include "csrc/gemm/wide/params.hpp"

namespace nf12 {

struct WideWalk {
  int begin, cursor;  // of the stretch: k-blocks that are left
  int whole;          // the next whole tile
  int tiles, columns, blocks;
  int tile, first, last;  // the piece: k-blocks [first, last) of a tile

  NF12_INLINE static constexpr WideWalk of(const WideParams& p, int block) {
    WideWalk walk = {};
    walk.begin = start_of(p, block);
    walk.cursor = start_of(p, block + 1);
    walk.whole = p.shared_tiles + block;
    walk.tiles = p.tiles;
    walk.columns = p.columns;
    walk.blocks = p.blocks;
    return walk;
  }

  // The first k-block of a block's stretch; all of them times (blocks + 1) fits 31 bits.
  NF12_INLINE static constexpr int start_of(const WideParams& p, int block) {
    if (p.sharers == 0) return p.shared_tiles * p.columns * block / p.blocks;
    return block / p.sharers * p.columns +
           (p.columns - p.own) * (block % p.sharers) / (p.sharers - 1);
  }

  // Of the piece: another block owns the tile; this one does, with the help of others.
  NF12_INLINE constexpr bool leaves() const { return last < columns; }
  NF12_INLINE constexpr bool gathers() const { return last == columns && first > 0; }
  // The first of the blocks before `block`, its owner, that have some of the tile.
  NF12_INLINE constexpr int first_helper(const WideParams& p, int block) const {
    do {
      --block;
    } while (start_of(p, block) > tile * columns);
    return block;
  }

  // K-blocks of all pieces.
  NF12_INLINE constexpr int total() const {
    const int left = whole < tiles ? (tiles - whole + blocks - 1) / blocks : 0;
    return cursor - begin + left * columns;
  }

  NF12_INLINE constexpr bool next() {
    if (cursor > begin) {
      tile = (cursor - 1) / columns;
      const int low = tile * columns;
      first = begin > low ? begin - low : 0;
      last = cursor - low;
      cursor = low + first;
      return true;
    }
    if (whole >= tiles) return false;
    tile = whole;
    first = 0;
    last = columns;
    whole += blocks;
    return true;
  }
};

}  // namespace nf12
