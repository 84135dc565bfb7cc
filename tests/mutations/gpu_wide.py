"""Faults of how the wide kernels' work is shared out and where it lies: noticed without a card."""

from __future__ import annotations

from mutant import Mutant

WALK = "csrc/gemm/wide/walk.hpp"
MAP = "csrc/gemm/tensor_map.hpp"
LAUNCH = "csrc/gemm/wide/launch.hpp"
ONCE_EACH = "host_wide_launch_test every_k_block_once"
LIMITS = "host_wide_launch_test every_choice_of_a_shape_is_within_the_limits"
PIECES = "host_wide_launch_test pieces_lie_apart_and_each_weight_once"
IN_ORDER = "host_wide_launch_test copies_ask_for_jobs_no_later_than_their_place"
BOXES = "host_wide_launch_test boxes_are_what_the_tensor_unit_takes"

SHARED = "host_wide_test sums_of_several_blocks"

WIDE = [
    Mutant(
        "wide_stretches_rounded_down",
        WALK,
        "return p.shared_tiles * p.columns * block / p.blocks;",
        "return p.shared_tiles * p.columns / p.blocks * block;",
        ONCE_EACH,
    ),
    Mutant(
        "wide_sums_of_a_block_before",
        WALK,
        "    } while (start_of(p, block) > tile * columns);\n",
        "    } while (start_of(p, block) >= tile * columns && block > 0);\n",
        ONCE_EACH,
    ),
    Mutant(
        "wide_owner_no_longer_than_its_helpers",
        LAUNCH,
        "(columns + (sharers - 1) * kWideLag + sharers - 1) / sharers);",
        "(columns + sharers - 1) / sharers);",
        "host_wide_launch_test an_owner_multiplies_longer_than_its_helpers",
    ),
    Mutant("wide_whole_tiles_skipped", WALK, "whole += blocks;", "whole += blocks + 1;", ONCE_EACH),
    Mutant(
        "wide_pieces_not_permuted",
        MAP,
        "(column / 8 ^ row % 8) * 16",
        "column / 8 * 16",
        PIECES,
    ),
    Mutant(
        "wide_rows_at_a_time_rounded_down",
        LAUNCH,
        "kOnceBlocks * ((clusters + p.wide.token_tiles - 1) / p.wide.token_tiles));",
        "kOnceBlocks * std::max(1, clusters / p.wide.token_tiles));",
        IN_ORDER,
    ),
    Mutant(
        "wide_a_single_rows_stride",
        MAP,
        "(2 * columns + 15) / 16 * 16;",
        "2 * columns;",
        BOXES,
    ),
    Mutant(
        "wide_tile_rows_that_overlap",
        LAUNCH,
        "weight.payload_stride_bytes >= tile_columns(weight.k) * kTileBytes &&",
        "weight.payload_stride_bytes >= 0 &&",
        BOXES,
    ),
    Mutant(
        "wide_flag_up_before_the_sums_are_written",
        "csrc/gemm/wide/outputs.hpp",
        "  arch::await_boxes_written();\n  arch::raise_flag",
        "  arch::raise_flag",
        SHARED,
    ),
    Mutant(
        "wide_sums_of_others_not_awaited",
        "csrc/gemm/wide/outputs.hpp",
        "      arch::wait_barrier(shared + Plan::kTokensFilled + 8 * ring.stage, ring.parity);\n",
        "",
        SHARED,
    ),
    Mutant(
        "wide_sums_written_over_those_still_read",
        "csrc/gemm/wide/outputs.hpp",
        "    const uint32_t lanes = staging[part % 2] + lanes_sums(place);\n"
        "    if (place.elected) arch::await_boxes_read<1>();\n",
        "    const uint32_t lanes = staging[part % 2] + lanes_sums(place);\n",
        SHARED,
    ),
    Mutant(
        "wide_sums_of_the_block_before_alone",
        "csrc/gemm/wide/walk.hpp",
        "    } while (start_of(p, block) > tile * columns);\n",
        "    } while (false);\n",
        SHARED,
    ),
    Mutant(
        "wide_flag_left_up",
        "csrc/gemm/wide/copies.hpp",
        "      *flag = 0;\n",
        "",
        "host_wide_test flags_are_down_again",
    ),
    Mutant(
        "wide_never_told_where_nothing_follows",
        "csrc/gemm/wide/kernel.hpp",
        "  if (tell_at > done) tell_sums(p, place);\n",
        "",
        SHARED,
    ),
    Mutant(
        "wide_never_told_where_little_follows",
        "csrc/gemm/wide/kernel.hpp",
        "        if (place.elected) tell_sums(p, place);\n        tell_at = 0;\n",
        "        tell_at = 0;\n",
        SHARED,
    ),
]
