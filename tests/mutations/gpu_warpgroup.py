"""Faults of the warpgroup kernels, of how their work is shared out, and of what their blocks have:
noticed without a card."""

from __future__ import annotations

from mutant import Mutant

LAUNCH = "csrc/gemm/warpgroup/launch.hpp"
PLAN = "csrc/gemm/warpgroup/plan.hpp"
KERNEL = "csrc/gemm/warpgroup/kernel.hpp"
TOKENS = "csrc/gemm/warpgroup/tokens.hpp"
SUMS = "csrc/gemm/warpgroup/sums.hpp"
SPECIAL = "host_warpgroup_test special_values_reach_the_multiplier"
LONG = "host_warpgroup_test long_stretches"
LIMITS = "host_warpgroup_launch_test every_choice_of_a_shape_is_within_the_limits"

WARPGROUP = [
    Mutant(
        "warpgroup_more_turns_than_columns",
        LAUNCH,
        "config.columns - 1, columns / blocks}",
        "config.columns - 1, stretch}",
        LIMITS,
    ),
    Mutant(
        "warpgroup_more_memory_than_a_block_has",
        LAUNCH,
        "if (time >= least || warpgroup_shared_bytes(tokens, shape) > most_shared_bytes) continue;",
        "if (time >= least) continue;",
        LIMITS,
    ),
    Mutant(
        "warpgroup_rows_of_x_that_overlap",
        LAUNCH,
        "cluster_takes(weight) && (m == 1 || x_stride >= weight.k)",
        "cluster_takes(weight)",
        "host_warpgroup_launch_test what_the_kernels_take",
    ),
    Mutant(
        "warpgroup_a_block_without_its_last_group",
        LAUNCH,
        "(config.groups + 1) * kGroupTileRows * 32",
        "config.groups * kGroupTileRows * 32",
        LIMITS,
    ),
    Mutant(
        "warpgroup_memory_for_whole_shares_alone",
        PLAN,
        "(kPlane + (rows + blocks - 1) / blocks * blocks * kSegmentWords)",
        "(kPlane + rows * kSegmentWords)",
        "host_warpgroup_launch_test what_shares_the_memory_lies_apart",
    ),
    Mutant(
        "warpgroup_takes_registers_that_nobody_gave",
        PLAN,
        "(kThreads * kLaunched - (kThreads - kLanes) * kTokenRegisters) / kLanes / 8 * 8;",
        "(kThreads * kLaunched - (kThreads - kLanes) * kTokenRegisters) / kLanes / 8 * 8 + 8;",
        "host_warpgroup_launch_test registers_that_are_taken_were_given",
    ),
    Mutant(
        "warpgroup_permuted_tokens_not_shown",
        TOKENS,
        "    arch::show_to_copies();\n    arch::sync_wave();\n",
        "    arch::sync_wave();\n",
        SPECIAL,
    ),
    Mutant(
        "warpgroup_free_column_not_awaited",
        TOKENS,
        "    if (ring.phase > 0) arch::wait_barrier("
        "shared, Plan::kRead + 2 * ring.column, ring.phase - 1);\n",
        "",
        LONG,
    ),
    Mutant(
        "warpgroup_free_column_awaited_a_round_late",
        TOKENS,
        "    if (ring.phase > 0) arch::wait_barrier("
        "shared, Plan::kRead + 2 * ring.column, ring.phase - 1);\n",
        "    if (ring.phase > 1) arch::wait_barrier("
        "shared, Plan::kRead + 2 * ring.column, ring.phase - 2);\n",
        LONG,
    ),
    Mutant(
        "warpgroup_weights_decoded_over_those_multiplied",
        KERNEL,
        "    arch::await_products<0>();\n    if (before",
        "    arch::await_products<1>();\n    if (before",
        LONG,
    ),
    Mutant(
        "warpgroup_column_of_tokens_not_advanced",
        KERNEL,
        "    column.advance(turns);\n",
        "",
        SPECIAL,
    ),
    Mutant(
        "warpgroup_tokens_multiplied_before_they_are_permuted",
        KERNEL,
        "    arch::wait_barrier(shared, Plan::kPermuted + 2 * column.column, column.phase);\n",
        "",
        SPECIAL,
    ),
    Mutant(
        "warpgroup_sums_to_the_first_slot",
        SUMS,
        "Plan::kPlane + (slot * blocks + place.rank) * Plan::kSegmentWords);",
        "Plan::kPlane + (0 * blocks + place.rank) * Plan::kSegmentWords);",
        SPECIAL,
    ),
    Mutant(
        "warpgroup_sums_put_over_those_on_their_way",
        SUMS,
        "    if (part > 0 && arch::lane() == 0) arch::await_boxes_read<0>();\n",
        "",
        SPECIAL,
    ),
    Mutant(
        "warpgroup_sums_put_over_a_tile_that_is_read",
        SUMS,
        "arch::sync_wave();  // all lanes have read the last tile, and",
        "if (part > 0) arch::sync_wave();  //",
        SPECIAL,
    ),
    Mutant(
        "warpgroup_turns_put_over_a_tile_that_is_read",
        SUMS,
        "    else\n      arch::sync_wave();\n",
        "",
        "host_warpgroup_test fewer_columns_than_turns",
    ),
    Mutant(
        "warpgroup_most_tokens_to_others",
        "csrc/gemm/select.hpp",
        "for (size_t i = 0; i < count; ++i)  // ascending",
        "for (size_t i = 1; i < count; ++i)  // ascending",
        "host_select_test the_smallest_warpgroup_kernel_takes_all_tokens",
    ),
]
