"""Faults of the cluster kernel of gemm, for the host model to notice."""

from __future__ import annotations

from mutant import Mutant

KERNEL = "csrc/gemm/cluster/kernel.hpp"
EDGES = "host_cluster_test every_edge_of_m_multiplies_integers_exactly"
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
        "cluster_tokens_not_cleared",
        KERNEL,
        "  clear_tokens<config>(p.gemm.m, place.thread, shared);\n",
        "",
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
        "cluster_sums_not_awaited",
        KERNEL,
        "    arch::wait_barrier(shared, Plan::kGathered, 0);\n",
        "    arch::sync_block();\n",
        EDGES,
    ),
]
