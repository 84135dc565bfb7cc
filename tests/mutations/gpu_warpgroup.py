"""Faults of the warpgroup kernels, of how their work is shared out, and of what their blocks have:
noticed without a card."""

from __future__ import annotations

from mutant import Mutant

LAUNCH = "csrc/gemm/warpgroup/launch.hpp"
PLAN = "csrc/gemm/warpgroup/plan.hpp"
KERNEL = "csrc/gemm/warpgroup/kernel.hpp"
TOKENS = "csrc/gemm/warpgroup/tokens.hpp"
PERMUTE = "csrc/gemm/warpgroup/permute.hpp"
SUMS = "csrc/gemm/warpgroup/sums.hpp"
WEIGHTS = "csrc/gemm/warpgroup/weights.hpp"
SPECIAL = "host_warpgroup_test special_values_reach_the_multiplier"
LONG = "host_warpgroup_test long_stretches"
FULL = "host_warpgroup_test long_stretches_of_full_blocks"
LIMITS = "host_warpgroup_launch_test every_choice_of_a_shape_is_within_the_limits"

WARPGROUP = [
    Mutant(
        "warpgroup_more_turns_than_columns",
        LAUNCH,
        "most_turns(config), columns / blocks}",
        "most_turns(config), columns}",
        LIMITS,
    ),
    Mutant(
        "warpgroup_more_memory_than_a_block_has",
        LAUNCH,
        "if (time >= least || warpgroup_shared_bytes(config.tokens, shape) > most_shared_bytes)",
        "if (time >= least)",
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
        "(config.groups + config.permutes) * kGroupTileRows * 32",
        "config.groups * kGroupTileRows * 32",
        LIMITS,
    ),
    Mutant(
        "warpgroup_memory_for_whole_shares_alone",
        PLAN,
        "kPlane + (rows + blocks - 1) / blocks * blocks * kSegmentWords;",
        "kPlane + rows * kSegmentWords;",
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
        PERMUTE,
        "    arch::show_to_copies();\n    arch::sync_wave();\n",
        "    arch::sync_wave();\n",
        SPECIAL,
    ),
    Mutant(
        "warpgroup_free_column_not_awaited",
        PERMUTE,
        "    if (ring.phase > 0) arch::wait_barrier("
        "shared, Plan::kRead + 2 * ring.column, ring.phase - 1);\n",
        "",
        LONG,
    ),
    Mutant(
        "warpgroup_free_column_awaited_a_round_late",
        PERMUTE,
        "    if (ring.phase > 0) arch::wait_barrier("
        "shared, Plan::kRead + 2 * ring.column, ring.phase - 1);\n",
        "    if (ring.phase > 1) arch::wait_barrier("
        "shared, Plan::kRead + 2 * ring.column, ring.phase - 2);\n",
        LONG,
    ),
    Mutant(
        "warpgroup_weights_decoded_over_those_multiplied",
        KERNEL,
        "    arch::await_products<0>();\n    if (any",
        "    arch::await_products<1>();\n    if (any",
        LONG,
    ),
    Mutant(
        "warpgroup_first_half_decoded_over_the_one_multiplied",
        KERNEL,
        "      arch::await_products<1>();",
        "      arch::await_products<2>();",
        SPECIAL,
    ),
    Mutant(
        "warpgroup_column_of_tokens_not_advanced",
        KERNEL,
        "    column.advance(turns, length);\n",
        "",
        SPECIAL,
    ),
    Mutant(
        "warpgroup_tokens_multiplied_before_they_are_permuted",
        KERNEL,
        "    arch::wait_barrier(shared, Plan::kReady + 2 * column.column, column.phase);\n",
        "",
        SPECIAL,
    ),
    Mutant(
        "warpgroup_own_column_of_tokens_not_awaited",
        TOKENS,
        "      if (next == t)\n        arch::wait_barrier(shared, read, phase - 1);\n      else if",
        "      if",
        FULL,
    ),
    Mutant(
        "warpgroup_column_of_tokens_brought_before_it_is_free",
        TOKENS,
        "      else if (!arch::is_over(shared, read, phase - 1))\n        return;\n",
        "",
        FULL,
    ),
    Mutant(
        "warpgroup_columns_of_tokens_brought_by_one_wave_alone",
        TOKENS,
        "    next += place.row_groups * kGroupTileRows;",
        "    next += 2 * place.row_groups * kGroupTileRows;",
        FULL,
    ),
    Mutant(
        "warpgroup_codes_rotated_to_another_pair",
        WEIGHTS,
        "(7 - lane % 4 * 4) & 31",
        "(7 + lane % 4 * 4) & 31",
        SPECIAL,
    ),
    Mutant(
        "warpgroup_pieces_picked_where_they_are_not",
        WEIGHTS,
        "lane / 4 * 64 + lane / 8 * 16 + lane % 4 * 2",
        "lane / 4 * 64 + lane / 4 % 4 * 16 + lane % 4 * 2",
        SPECIAL,
    ),
    Mutant(
        "warpgroup_sums_in_the_place_of_tokens_that_are_read",
        KERNEL,
        "  if (Plan::kSumsReplaceTokens || p.gemm.splits > 1) arch::wait_cluster();",
        "  if (!Plan::kSumsReplaceTokens && p.gemm.splits > 1) arch::wait_cluster();",
        "host_warpgroup_test every_number_of_blocks_and_turns",
    ),
    Mutant(
        "warpgroup_outputs_of_the_first_tokens_for_all",
        SUMS,
        "arch::block_y() * all.tokens + 16 * part;",
        "16 * part;",
        "host_warpgroup_test several_tiles_of_tokens",
    ),
    Mutant(
        "warpgroup_outputs_of_tokens_that_are_another_block_s",
        SUMS,
        "if (16 * part >= all.tokens || first_token >= p.m) continue;",
        "if (first_token >= p.m) continue;",
        "host_warpgroup_test several_tiles_of_tokens",
    ),
    Mutant(
        "warpgroup_tokens_of_a_kernel_for_those_of_a_block",
        TOKENS,
        "arch::block_y() * p.tokens);",
        "arch::block_y() * Plan::kTokens);",
        "host_warpgroup_test several_tiles_of_tokens",
    ),
    Mutant(
        "warpgroup_more_bytes_expected_than_come",
        TOKENS,
        "warpgroup_box_tokens(config, p.tokens) * (2 * kTileColumns)",
        "4 * Plan::kColumnWords",
        "host_warpgroup_test several_tiles_of_tokens",
    ),
    Mutant(
        "warpgroup_tokens_shared_out_unevenly",
        LAUNCH,
        "((p.gemm.m + rows - 1) / rows + 15) / 16 * 16",
        "(p.gemm.m + rows - 1) / rows",
        "host_select_test several_tiles_of_fewer_tokens",
    ),
    Mutant(
        "warpgroup_tiles_as_few_as_can_be",
        "csrc/gemm/select.hpp",
        "problem.m > 64 ? fewest + 2 : fewest",
        "fewest",
        "host_select_test several_tiles_of_fewer_tokens",
    ),
    Mutant(
        "wide_stretches_shorter_than_sums_need",
        "csrc/gemm/wide/launch.hpp",
        "inline constexpr int64_t kShortestStretch = 16;",
        "inline constexpr int64_t kShortestStretch = 1;",
        "host_select_test the_faster_one_of_warpgroups_and_wide",
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
