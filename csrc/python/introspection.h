// What libnf12.so tells of itself: plain C, exported, free of torch. nf12._C wraps it.
#pragma once
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#define NF12_EXPORT __attribute__((visibility("default")))

// Strings live as long as the library.
NF12_EXPORT const char* nf12_version(void);
NF12_EXPORT const char* nf12_compiler(void);
NF12_EXPORT const char* nf12_source_hash(void);   // see cmake/build_info.cmake
NF12_EXPORT const char* nf12_torch_target(void);  // the least torch this file loads on, "2.11"
NF12_EXPORT const char* nf12_gpu_targets(void);   // embedded GPU code, comma-separated; may be ""
NF12_EXPORT int32_t nf12_format_version(void);

// Instruction-set levels of the CPU kernels, 0 the least. Null or false past the last one.
NF12_EXPORT int32_t nf12_cpu_levels(void);
NF12_EXPORT const char* nf12_cpu_level_name(int32_t level);
NF12_EXPORT int32_t nf12_cpu_level_supported(int32_t level);

// The highest level in use (NF12_CPU_LEVEL caps it), or -1 with *error set to a sentence.
NF12_EXPORT int32_t nf12_cpu_highest_level(const char** error);
// The level `gemm` takes for a shape on this machine, overrides aside; -1 as above.
NF12_EXPORT int32_t nf12_cpu_select(int64_t m, int64_t n, int64_t k, const char** error);

// What a thread, or NF12_KERNEL, may ask for by name: the CPU levels, then the paths of GPUs. Null
// past the last one.
NF12_EXPORT int32_t nf12_kernels(void);
NF12_EXPORT const char* nf12_kernel_name(int32_t kernel);

// The calling thread's override of `select`: one of the kernels above, or -1 for none. A level that
// this machine does not support is refused (false).
NF12_EXPORT int32_t nf12_set_kernel_override(int32_t kernel);
NF12_EXPORT int32_t nf12_kernel_override(void);

// Whether kernels that know dependent launch use it, for the whole process; so they do at first.
NF12_EXPORT void nf12_set_dependent_launch(int32_t allowed);
NF12_EXPORT int32_t nf12_dependent_launch(void);

// Entry points that code objects may hold. Null past the last one.
NF12_EXPORT int32_t nf12_gpu_kernels(void);
NF12_EXPORT const char* nf12_gpu_kernel_name(int32_t i);

// Whether the library has kernels for torch's GPU `index`: 1, or -1 with *error set to the reason.
NF12_EXPORT int32_t nf12_gpu_usable(int32_t index, const char** error);
// The kernel `gemm` takes for a shape on that GPU, overrides aside, with the tokens of a block (0:
// buffered), the splits of k asked for and whether the GPU's table says so; -1 as above.
NF12_EXPORT int32_t nf12_gpu_select(int64_t m, int64_t n, int64_t k, int32_t index, int32_t* tokens,
                                    int32_t* splits, int32_t* tuned, const char** error);
// Gives that GPU a table of measured kernels in front of its rules, for the process: five numbers a
// row, n, k, the first and last m and the kernel. No rows: no table. -1 as above.
NF12_EXPORT int32_t nf12_set_gemm_table(int32_t index, const int64_t* numbers, int32_t rows,
                                        const char** error);

// For the tests: from now on operators take CPU tensors for memory of GPU `index` (-1: no longer)
// and `stream` for its current stream; the buffered path has slices of that size (0: its own).
// `driver` is a library with the entry points of libamdhip64, whose devices are asked anew; empty:
// torch's own driver again; null: the one in use. -1 as above.
NF12_EXPORT int32_t nf12_pretend_gpu(const char* driver, int32_t index, void* stream,
                                     int64_t slice_bytes, const char** error);

#ifdef __cplusplus
}
#endif
