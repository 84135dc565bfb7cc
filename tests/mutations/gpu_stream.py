"""Faults of the streaming kernel of gemm, for the host model to notice."""

from __future__ import annotations

from mutant import Mutant

KERNEL = "csrc/gemm/stream/kernel.hpp"
LAUNCH = "csrc/gemm/stream/launch.hpp"
SHARED_ROWS = "host_stream_test blocks_that_share_rows"
EVERY_SHARE = "host_stream_test every_share_of_tiles"

STREAM = [
    Mutant(
        "stream_more_rows_a_wave_than_it_has_sums_for",
        LAUNCH,
        "const int64_t most = int64_t{config.waves} * multiprocessors;",
        "const int64_t most = int64_t{32} * multiprocessors;",
        "host_stream_test problems_that_fill_the_machine",
    ),
    Mutant(
        "stream_sums_of_many_rows_for_nothing",
        LAUNCH,
        "+ rows * 10 * m +",
        "+ 0 * m +",
        "host_select_test the_faster_one_of_stream_and_warpgroups",
    ),
    Mutant(
        "stream_for_no_more_tokens_than_it_always_takes",
        "csrc/gemm/select.hpp",
        "problem.m >= traits.stream_below && problem.m <= kStreamMostTokens",
        "problem.m < traits.stream_below && problem.m <= kStreamMostTokens",
        "host_select_test the_faster_one_of_stream_and_warpgroups",
    ),
    Mutant(
        "stream_waves_not_awaited",
        KERNEL,
        "  arch::sync_block();\n  if (token >= gemm.m) return;\n",
        "  if (token >= gemm.m) return;\n",
        EVERY_SHARE,
    ),
    Mutant(
        "stream_copies_not_awaited",
        KERNEL,
        "      arch::await_copies();\n",
        "",
        EVERY_SHARE,
    ),
    Mutant(
        "stream_other_stage_still_read",
        KERNEL,
        "      arch::sync_wave();  // the lanes see each other's copies, and have read the other"
        " stage\n",
        "",
        EVERY_SHARE,
    ),
    Mutant(
        "stream_sums_of_the_row_before_kept",
        KERNEL,
        "    sums.group[group] = {};\n",
        "",
        EVERY_SHARE,
    ),
    Mutant(
        "stream_tokens_of_the_row_before",
        KERNEL,
        "t + 1 < stop ? x : x_row",
        "x",
        EVERY_SHARE,
    ),
    Mutant(
        "stream_wave_without_tiles_leaves_no_zeros",
        KERNEL,
        "  if (run.count == 0) store_segment(shared, 0, sums);\n",
        "",
        EVERY_SHARE,
    ),
    Mutant(
        "stream_a_wave_of_nine_left_out",
        KERNEL,
        "j < more; j += kBatch",
        "j + kBatch <= more; j += kBatch",
        EVERY_SHARE,
    ),
    Mutant(
        "stream_row_begun_elsewhere_taken_for_its_own",
        KERNEL,
        "  const bool starts = begin >= 0;\n",
        "  const bool starts = true;\n",
        SHARED_ROWS,
    ),
    Mutant(
        "stream_unfinished_row_written",
        KERNEL,
        "      if (begin + p.columns > run.tiles) {\n",
        "      if (false) {\n",
        SHARED_ROWS,
    ),
    Mutant(
        "stream_only_the_block_before_asked",
        KERNEL,
        "  while (p.start_of(other) > first) --other;\n",
        "  ;\n",
        SHARED_ROWS,
    ),
    Mutant(
        "stream_flag_left_raised",
        "csrc/arch/host/policy.hpp",
        "  post_sum(at, 0, 0);\n",
        "",
        SHARED_ROWS,
    ),
]
