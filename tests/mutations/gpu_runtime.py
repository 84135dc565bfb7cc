"""Faults between the operators and the GPU driver, for the stand-in driver and select's test."""

from __future__ import annotations

from mutant import Mutant

DEVICE = "csrc/runtime/device.cpp"
DRIVER = "csrc/runtime/driver.cpp"
SELECT = "csrc/gemm/select.hpp"
TABLE = "csrc/gemm/table.hpp"

RUNTIME = [
    Mutant(
        "code_object_by_the_archs_first_letters",
        DEVICE,
        "if (object.target != target) continue;",
        "if (!target.starts_with(std::string_view(object.target).substr(0, 5))) continue;",
        "standin_gpu_test a_gpu_is_known_by_its_exact_name",
    ),
    Mutant(
        "arch_with_its_features",
        DRIVER,
        'kArchNameBytes).c_str(), ":")',
        'kArchNameBytes).c_str(), "|")',
        "standin_gpu_test a_gpu_is_known_by_its_exact_name",
    ),
    Mutant(
        "modules_load_in_the_threads_own_capture_mode",
        DEVICE,
        "int mode_ = kCaptureModeRelaxed;",
        "int mode_ = 0;",
        "standin_gpu_test modules_load_once_and_while_a_stream_is_captured",
    ),
    Mutant(
        "modules_load_at_each_call",
        DEVICE,
        "known_[index].store(devices_.back().get(), std::memory_order_release);",
        "",
        "standin_gpu_test modules_load_once_and_while_a_stream_is_captured",
    ),
    Mutant(
        "device_not_made_current",
        DEVICE,
        "driver(driver.set_device, device.index_);",
        "",
        "standin_gpu_test work_goes_to_the_queues_device_and_stream",
    ),
    Mutant(
        "device_not_set_back",
        DEVICE,
        "if (device_before_ >= 0)",
        "if (device_before_ > 0)",
        "standin_gpu_test work_goes_to_the_queues_device_and_stream",
    ),
    Mutant(
        "copy_to_the_host_not_waited_for",
        DEVICE,
        "reinterpret_cast<uintptr_t>(source), bytes, stream_);\n  wait();",
        "reinterpret_cast<uintptr_t>(source), bytes, stream_);",
        "standin_gpu_test work_goes_to_the_queues_device_and_stream",
    ),
    Mutant(
        "launch_on_the_default_stream",
        DEVICE,
        "/*shared_bytes=*/0u, stream_,",
        "/*shared_bytes=*/0u, Stream{},",
        "standin_gpu_test launches_go_to_the_queues_stream",
    ),
    Mutant(
        "failure_left_for_torch_to_find",
        DRIVER,
        "  forget_failure();\n  throw",
        "  throw",
        "standin_gpu_test a_failure_carries_the_drivers_text",
    ),
    Mutant(
        "split_launch_not_summed",
        "csrc/gpu/gemm.cpp",
        "if (p.splits == 1) return;",
        "return;",
        "standin_gpu_test gemm_gives_the_cpus_bits",
    ),
    Mutant(
        "sum_scaled_the_wrong_way",
        "csrc/gpu/gemm.cpp",
        "-scale_shift(args.w.base)",
        "scale_shift(args.w.base)",
        "standin_gpu_test gemm_gives_the_cpus_bits",
    ),
    Mutant(
        "sixteen_tokens_fused",
        SELECT,
        ".fused_below = 16,",
        ".fused_below = 17,",
        "host_select_test",
    ),
    Mutant(
        "tail_of_k_buffered_with_rows_off_16_bytes",
        SELECT,
        "problem.weight.k % 8 == 0;",
        "problem.weight.k % 4 == 0;",
        "host_select_test",
    ),
    Mutant(
        "kernel_chosen_that_is_not_built",
        SELECT,
        "(traits.fused >> (problem.m - 1) & 1) == 0",
        "(traits.fused >> (problem.m - 2) & 1) == 0",
        "host_select_test",
    ),
    Mutant(
        "last_slice_of_the_buffered_path_much_smaller",
        SELECT,
        "return (rows + slices - 1) / slices;",
        "return most;",
        "host_select_test",
    ),
    Mutant(
        "row_of_a_table_beyond_its_tokens",
        TABLE,
        "row.k != k || m > row.m_last",
        "row.k != k",
        "host_table_test",
    ),
    Mutant(
        "row_of_a_table_for_another_k",
        TABLE,
        "row.n != n || row.k != k ||",
        "row.n != n ||",
        "host_table_test",
    ),
    Mutant(
        "path_of_a_table_that_does_not_take_the_problem",
        TABLE,
        "if (const GemmChoice choice = choice_of(*path, traits, problem)) return choice;",
        "return choice_of(*path, traits, problem);",
        "host_table_test",
    ),
]
