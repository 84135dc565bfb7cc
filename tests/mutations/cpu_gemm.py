"""Faults of gemm on the CPU that an AVX2 machine can notice. The level files of AVX-512 and AMX are
proven elsewhere (scripts/prove_cpu_levels.py), the loops that they share with others here."""

from __future__ import annotations

from mutant import Mutant

GEMM = [
    Mutant(
        "gemm_skips_the_last_entry_of_a_list",
        "csrc/cpu/gemm/patch.hpp",
        "i < word.count",
        "i + 1 < word.count",
        "gemm_test",
    ),
    Mutant(
        "gemm_leaves_the_tail_of_k_to_chance",
        "csrc/cpu/gemm/activations.hpp",
        "std::memset(copy, 0, sizeof copy);",
        "std::memset(copy, 0x40, sizeof copy);",
        "gemm_test",
    ),
    Mutant(
        "gemm_rounds_nan_like_a_number",
        "csrc/cpu/gemm/epilogue.hpp",
        "is_nan ? bits >> 16 | 0x40 : rounded >> 16",
        "is_nan ? rounded >> 16 : rounded >> 16",
        "gemm_test",
    ),
    Mutant(
        "gemm_stores_rows_beyond_n",
        "csrc/cpu/gemm/epilogue.hpp",
        "static_cast<size_t>(rows) * sizeof(uint16_t)",
        "kTileRows * sizeof(uint16_t)",
        "gemm_test",
    ),
    Mutant(
        "fused_adds_up_another_row",
        "csrc/cpu/gemm/fused.hpp",
        "V::total(sums[row * kTokens + t])",
        "V::total(sums[(row ^ 1) * kTokens + t])",
        "gemm_test",
    ),
    Mutant(
        "blocked_patches_the_neighbouring_row",
        "csrc/cpu/gemm/vector_avx2.hpp",
        "panel[kTileRows * column + row] = ",
        "panel[kTileRows * column + (row ^ 8)] = ",
        "gemm_test",
    ),
    Mutant(
        "blocked_decodes_two_words_alike",
        "csrc/cpu/gemm/vector_avx2.hpp",
        "codes[4 * half + word]",
        "codes[4 * half + word / 2]",
        "gemm_test",
    ),
    Mutant(
        "blocked_loses_a_token_of_uneven_groups",
        "csrc/cpu/gemm/blocked.hpp",
        "larger(tokens % count)",
        "larger(0)",
        "gemm_test",
    ),
    Mutant(
        "tiled_multiplies_the_previous_tile",
        "csrc/cpu/gemm/tiled.hpp",
        "decoded[c % 2].bits",
        "decoded[0].bits",
        "gemm_test",
    ),
    Mutant(
        "tiled_forgets_the_last_group",
        "csrc/cpu/gemm/tiled.hpp",
        "groups - first == 2",
        "groups - first == 5",
        "gemm_test",
    ),
    Mutant(
        "tiled_pairs_another_half_of_x",
        "csrc/cpu/gemm/tiled.hpp",
        "kGroup * 2 * kFactor + kFactor, 64",
        "kGroup * 2 * kFactor, 64",
        "gemm_test",
    ),
]
