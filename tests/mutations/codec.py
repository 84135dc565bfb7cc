"""Faults of the CPU codec and of the format's rules."""

from __future__ import annotations

from mutant import Mutant

CODEC = [
    Mutant(
        "base_may_overflow_an_escape",
        "csrc/cpu/pack_base.cpp",
        "up < shift",
        "up < shift - 1",
        "pack_test",
    ),
    Mutant(
        "base_may_make_a_weight_subnormal",
        "csrc/cpu/pack_base.cpp",
        "down < -shift",
        "down < -shift - 1",
        "pack_test",
    ),
    Mutant(
        "base_may_cut_a_subnormal",
        "csrc/cpu/pack_base.cpp",
        "(1u << -shift) - 1",
        "(1u << -shift) / 2 - 1",
        "pack_test",
    ),
    Mutant(
        "base_tie_goes_to_the_far_one",
        "csrc/cpu/pack_base.cpp",
        "std::abs(base - kNeutralBase)",
        "-std::abs(base - kNeutralBase)",
        "pack_test",
    ),
    Mutant(
        "raw_one_escape_too_late",
        "csrc/cpu/pack_table.cpp",
        "index[tile] > kMaxListed",
        "index[tile] > kMaxListed + 1",
        "pack_test",
    ),
    Mutant(
        "equal_raw_tiles_not_shared",
        "csrc/cpu/pack_table.cpp",
        "by_hash_.emplace(hash, Place{tile, quad});",
        "",
        "pack_test",
    ),
    Mutant(
        "last_quad_not_filled",
        "csrc/cpu/pack.cpp",
        "std::fill(entry, end, 0u);",
        "std::fill(entry, entry, 0u);\n  static_cast<void>(end);",
        "pack_test",
    ),
    Mutant(
        "padding_counted_as_weights",
        "csrc/cpu/pack.cpp",
        "survey->counts[base] -= kTileWeights - tile.rows * tile.columns;",
        "",
        "pack_test",
    ),
    Mutant(
        "subnormal_scaled_without_its_shift",
        "csrc/format/scale.hpp",
        "significand <<= up;",
        "significand <<= up - 1;",
        "pack_test",
    ),
    Mutant(
        "zero_loses_its_sign",
        "csrc/format/scale.hpp",
        "(exponent == 0 && significand == 0)) return bits;",
        "(exponent == 0 && significand == 0)) return exponent == 0 ? 0 : bits;",
        "pack_test",
    ),
    Mutant(
        "table_bound_off_by_one",
        "csrc/format/escapes.hpp",
        "quads() <= table_quads - quad",
        "quads() <= table_quads - quad + 1",
        "check_test",
    ),
    Mutant(
        "check_lets_entries_repeat",
        "csrc/format/check.hpp",
        "position <= previous",
        "position < previous",
        "check_test",
    ),
    Mutant(
        "check_skips_padding",
        "csrc/format/check.hpp",
        "return row >= rows || column >= columns;",
        "return row >= rows;",
        "check_test",
    ),
    Mutant(
        "avx2_unpack_swaps_odd_columns",
        "csrc/cpu/unpack_avx2.cpp",
        "a + 1, z, a + 3, z, a + 1, z, a + 3, z,",
        "a + 3, z, a + 1, z, a + 3, z, a + 1, z,",
        "unpack_test",
    ),
    Mutant(
        "avx2_pack_misses_the_lowest_exponent_bit",
        "csrc/cpu/pack_avx2.cpp",
        "_mm256_srli_epi16(low, 7)",
        "_mm256_srli_epi16(low, 6)",
        "pack_test",
    ),
    Mutant(
        "gather_takes_another_row_of_a_raw_tile",
        "csrc/cpu/gather.cpp",
        "entries + row * kTileColumns / 2",
        "entries + row * kTileColumns / 4",
        "unpack_test",
    ),
]
