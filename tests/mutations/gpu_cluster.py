"""Faults of the cluster kernel of gemm, for the host model to notice."""

from __future__ import annotations

from mutant import Mutant

KERNEL = "csrc/gemm/cluster/kernel.hpp"
EDGES = "host_cluster_test every_edge_of_m_multiplies_integers_exactly"
SHARES = "host_cluster_test every_number_of_blocks_and_turns"
LONG = "host_cluster_test long_stretches"

CLUSTER = [
    Mutant(
        "cluster_x_not_awaited",
        KERNEL,
        "    arch::wait_barrier(shared, Plan::kFilled + 2 * column, phase);\n",
        "",
        EDGES,
    ),
    Mutant(
        "cluster_free_place_not_awaited",
        KERNEL,
        "    if (t >= Plan::kColumns) arch::wait_barrier("
        "shared, Plan::kEmptied + 2 * column, phase - 1);\n",
        "",
        LONG,
    ),
    Mutant(
        "cluster_free_place_of_the_phase_after",
        KERNEL,
        "2 * column, phase - 1);",
        "2 * column, phase);",
        LONG,
    ),
    Mutant(
        "cluster_free_place_never_told",
        KERNEL,
        "    if (arch::lane() == 0) arch::arrive_barrier(shared, Plan::kEmptied + 2 * column);\n",
        "",
        LONG,
    ),
    Mutant(
        "cluster_free_place_told_before_the_wave_has_read",
        KERNEL,
        "    arch::sync_wave();\n    if (arch::lane() == 0) arch::arrive_barrier",
        "    if (arch::lane() == 0) arch::arrive_barrier",
        LONG,
    ),
    Mutant(
        "cluster_free_place_told_by_too_few",
        KERNEL,
        "Plan::kEmptied + 2 * place.thread, place.rows);",
        "Plan::kEmptied + 2 * place.thread, 1);",
        LONG,
    ),
    Mutant(
        "cluster_free_place_told_by_too_many",
        KERNEL,
        "Plan::kEmptied + 2 * place.thread, place.rows);",
        "Plan::kEmptied + 2 * place.thread, p.rows + 1);",
        LONG,
    ),
    Mutant(
        "cluster_x_arrives_before_its_copies",
        KERNEL,
        "arch::arrive_barrier_with_copies(",
        "arch::arrive_barrier(",
        EDGES,
    ),
    Mutant(
        "cluster_phase_not_counted",
        KERNEL,
        "column -= Plan::kColumns, ++phase;",
        "column -= Plan::kColumns;",
        LONG,
    ),
    Mutant(
        "cluster_tile_awaited_too_late",
        KERNEL,
        "arch::await_copies_but<kAhead - 1>();",
        "arch::await_copies_but<kAhead>();",
        EDGES,
    ),
    Mutant(
        "cluster_turn_skipped",
        KERNEL,
        "place.turn = place.wave % p.turns;",
        "place.turn = 0 * (place.wave % p.turns);",
        SHARES,
    ),
    Mutant(
        "cluster_next_tile_of_another_turn",
        KERNEL,
        "    tile += turns * kTileBytes;\n",
        "    tile += kTileBytes;\n",
        SHARES,
    ),
    Mutant(
        "cluster_stretches_overlap",
        KERNEL,
        "columns * (place.rank + 1) / blocks - place.begin",
        "columns * (place.rank + 1) / blocks - place.begin + (place.rank + 1 < blocks)",
        SHARES,
    ),
    Mutant(
        "cluster_tokens_not_cleared",
        KERNEL,
        "  clear_tokens<config>(p.gemm.m, place.thread, shared);\n",
        "",
        EDGES,
    ),
    Mutant(
        "cluster_one_token_not_cleared",
        KERNEL,
        "i = m * Plan::kPitchWords + thread",
        "i = (m + 1) * Plan::kPitchWords + thread",
        EDGES,
    ),
    Mutant(
        "cluster_x_of_a_token_too_many",
        KERNEL,
        "token + first < p.m,",
        "token + first <= p.m,",
        EDGES,
    ),
    Mutant(
        "cluster_segment_of_another_block",
        KERNEL,
        "place.own / blocks * blocks + place.rank)",
        "place.own / blocks * blocks + (place.rank + 1) % blocks)",
        "host_cluster_test the_order_of_the_sum_is_the_promised_one",
    ),
    Mutant(
        "cluster_segment_of_another_turn",
        KERNEL,
        "* p.turns + place.turn) *",
        "* p.turns) *",
        SHARES,
    ),
    Mutant(
        "cluster_sums_sent_to_the_wrong_block",
        KERNEL,
        "arch::send_shared8(place.own % blocks,",
        "arch::send_shared8((place.own + 1) % blocks,",
        SHARES,
    ),
    Mutant(
        "cluster_segment_words_of_the_next_row",
        KERNEL,
        "+ row / 4) % kAmong)",
        "+ row / 4) % kPairs)",
        "host_cluster_test every_edge_of_m_multiplies_integers_exactly",
    ),
    Mutant(
        "cluster_expects_too_few_bytes",
        KERNEL,
        "owned * blocks * p.turns * Plan::kSegmentWords * 4);",
        "owned * blocks * p.turns * Plan::kSegmentWords * 2);",
        EDGES,
    ),
    Mutant(
        "cluster_expects_the_rows_of_a_full_block",
        KERNEL,
        "owned = (place.rows - place.rank",
        "owned = (p.rows - place.rank",
        SHARES,
    ),
    Mutant(
        "cluster_sums_not_awaited",
        KERNEL,
        "    arch::wait_barrier(shared, Plan::kGathered, 0);\n",
        "    arch::sync_block();\n",
        EDGES,
    ),
    Mutant(
        "cluster_blocks_not_awaited",
        KERNEL,
        "  if (blocks > 1) arch::wait_cluster();  // all blocks run, and count what comes\n",
        "",
        EDGES,
    ),
    Mutant(
        "cluster_barriers_not_seen_open",
        KERNEL,
        "  arch::sync_block();\n  arch::await_predecessor();\n",
        "  arch::await_predecessor();\n",
        EDGES,
    ),
    Mutant(
        "cluster_one_row_too_many",
        KERNEL,
        "out >= static_cast<int>(p.gemm.weight.n)) continue;",
        "out > static_cast<int>(p.gemm.weight.n)) continue;",
        "host_cluster_test every_tail_of_n",
    ),
]
