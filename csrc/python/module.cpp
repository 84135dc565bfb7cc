// nf12._C: what the library is and what it would choose, for nf12.info, nf12.select and
// nf12.use_kernel. The operators themselves are torch.ops.nf12.*.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "csrc/python/introspection.h"

namespace py = pybind11;

namespace {

std::string name_of(int32_t kernel, const char* error) {
  if (kernel < 0) throw std::runtime_error(error);
  return nf12_kernel_name(kernel);
}

// Of what kernel= takes: the CPU levels come first, the paths of GPUs follow.
std::vector<std::string> kernel_names(int32_t first) {
  std::vector<std::string> names;
  for (int32_t kernel = first; kernel < nf12_kernels(); ++kernel)
    names.emplace_back(nf12_kernel_name(kernel));
  return names;
}

std::vector<std::string> level_names(bool only_supported) {
  std::vector<std::string> names;
  for (int32_t level = 0; level < nf12_cpu_levels(); ++level)
    if (!only_supported || nf12_cpu_level_supported(level))
      names.emplace_back(nf12_cpu_level_name(level));
  return names;
}

std::vector<std::string> split(const std::string& list) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin < list.size();) {
    const size_t end = std::min(list.find(',', begin), list.size());
    parts.push_back(list.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

py::dict build_info() {
  py::dict info;
  info["version"] = nf12_version();
  info["compiler"] = nf12_compiler();
  info["torch_target"] = nf12_torch_target();
  info["format_version"] = nf12_format_version();
  info["gpu_targets"] = split(nf12_gpu_targets());
  info["source_hash"] = nf12_source_hash();
  return info;
}

std::string highest_cpu_level() {
  const char* error = nullptr;
  const int32_t level = nf12_cpu_highest_level(&error);
  return name_of(level, error);
}

std::vector<std::string> instances() {
  std::vector<std::string> names = level_names(/*only_supported=*/false);
  if (*nf12_gpu_targets() == '\0') return names;
  for (int32_t i = 0; i < nf12_gpu_kernels(); ++i) names.emplace_back(nf12_gpu_kernel_name(i));
  return names;
}

void check_sizes(int64_t m, int64_t n, int64_t k) {
  if (m < 0 || n < 1 || k < 1)
    throw py::value_error("select: m, n, k are " + std::to_string(m) + ", " + std::to_string(n) +
                          ", " + std::to_string(k) + ", expected m >= 0, n >= 1, k >= 1");
}

py::dict select_gpu(int64_t m, int64_t n, int64_t k, int32_t gpu) {
  check_sizes(m, n, k);
  const char* error = nullptr;
  int32_t tokens = 0, splits = 0, tuned = 0;
  py::dict choice;
  choice["kernel"] =
      name_of(nf12_gpu_select(m, n, k, gpu, &tokens, &splits, &tuned, &error), error);
  choice["tokens"] = tokens;
  choice["splits"] = splits;
  choice["tuned"] = tuned != 0;
  return choice;
}

std::string select_kernel(int64_t m, int64_t n, int64_t k, std::optional<int32_t> gpu) {
  check_sizes(m, n, k);
  const char* error = nullptr;
  if (!gpu) return name_of(nf12_cpu_select(m, n, k, &error), error);
  int32_t tokens = 0, splits = 0, tuned = 0;
  return name_of(nf12_gpu_select(m, n, k, *gpu, &tokens, &splits, &tuned, &error), error);
}

using TableRow = std::tuple<int64_t, int64_t, int64_t, int64_t, std::string>;

void set_gemm_table(int32_t gpu, const std::vector<TableRow>& rows) {
  const std::vector<std::string> names = kernel_names(0);
  std::vector<int64_t> numbers;
  for (const auto& [n, k, m_first, m_last, kernel] : rows) {
    const auto at = std::find(names.begin(), names.end(), kernel);
    numbers.insert(numbers.end(), {n, k, m_first, m_last, at - names.begin()});
  }
  const char* error = nullptr;
  if (nf12_set_gemm_table(gpu, numbers.data(), static_cast<int32_t>(rows.size()), &error) < 0)
    throw std::runtime_error(error);
}

std::optional<std::string> gpu_problem(int32_t index) {
  const char* error = nullptr;
  if (nf12_gpu_usable(index, &error) < 0) return error;
  return std::nullopt;
}

void pretend_gpu(const std::optional<std::string>& driver, int32_t index, uintptr_t stream,
                 int64_t slice_bytes) {
  const char* error = nullptr;
  if (nf12_pretend_gpu(driver ? driver->c_str() : nullptr, index, reinterpret_cast<void*>(stream),
                       slice_bytes, &error) < 0)
    throw std::runtime_error(error);
}

void set_kernel_override(const std::optional<std::string>& name) {
  if (!name) {
    nf12_set_kernel_override(-1);
    return;
  }
  const std::vector<std::string> names = kernel_names(0);
  for (size_t kernel = 0; kernel < names.size(); ++kernel) {
    if (names[kernel] != *name) continue;
    if (!nf12_set_kernel_override(static_cast<int32_t>(kernel)))
      throw py::value_error("kernel " + *name + " is not supported by this processor");
    return;
  }
  std::string known;
  for (const std::string& other : names) known += (known.empty() ? "" : ", ") + other;
  throw py::value_error("kernel " + *name + " is unknown, expected one of " + known);
}

std::optional<std::string> kernel_override() {
  const int32_t kernel = nf12_kernel_override();
  if (kernel < 0) return std::nullopt;
  return nf12_kernel_name(kernel);
}

}  // namespace

PYBIND11_MODULE(_C, m) {
  m.doc() = "Introspection of libnf12.so.";
  m.def("build_info", build_info,
        "version, compiler, torch_target, format_version, gpu_targets, source_hash");
  m.def("cpu_levels", [] { return level_names(false); }, "All CPU kernel levels, least first.");
  m.def(
      "supported_cpu_levels", [] { return level_names(true); },
      "The CPU kernel levels that this processor runs, least first.");
  m.def("highest_cpu_level", highest_cpu_level,
        "The level in use; NF12_CPU_LEVEL caps it. RuntimeError for a bad NF12_CPU_LEVEL.");
  m.def(
      "gpu_kernels", [] { return kernel_names(nf12_cpu_levels()); },
      "Names of the gemm paths on GPUs, as use_kernel takes them.");
  m.def("instances", instances,
        "All compiled kernels: the CPU's gemm levels, and what a target's GPU code may hold.");
  m.def(
      "select", select_kernel, py::arg("m"), py::arg("n"), py::arg("k"),
      py::arg("gpu") = py::none(),
      "The kernel that gemm takes for x [m, k] and a weight [n, k] on this CPU, or on torch's GPU "
      "of that number, overrides aside.");
  m.def("select_gpu", select_gpu, py::arg("m"), py::arg("n"), py::arg("k"), py::arg("gpu"),
        "The same with its blocks: {kernel, tokens, splits}, and whether a table says so: tuned.");
  m.def("set_gemm_table", set_gemm_table, py::arg("gpu"), py::arg("rows"),
        "Gives torch's GPU of that number a table of measured kernels, rows (n, k, first m, last "
        "m, kernel), in front of its rules; no rows: none. RuntimeError for what is no row.");
  m.def("gpu_problem", gpu_problem, py::arg("gpu"),
        "Why the library has no kernels for torch's GPU of that number, None if it has.");
  m.def("pretend_gpu", pretend_gpu, py::arg("driver"), py::arg("gpu"), py::arg("stream") = 0,
        py::arg("slice_bytes") = 0,
        "For the tests: operators take CPU tensors for memory of a GPU (-1: no longer) of the HIP "
        "driver at a path ('': torch's own, None: the one in use). slice_bytes: of the buffered "
        "path.");
  m.def("set_kernel_override", set_kernel_override, py::arg("name"),
        "Makes this thread's gemm calls use a kernel by name; None restores the choice.");
  m.def("kernel_override", kernel_override, "This thread's override, or None.");
  m.def(
      "set_dependent_launch", [](bool allowed) { nf12_set_dependent_launch(allowed); },
      py::arg("allowed"),
      "Whether NVIDIA kernels may start before the one in front of them ends (programmatic "
      "dependent launch), for the whole process. For benchmarks and for those who look for a "
      "fault; "
      "a captured graph keeps what held then.");
  m.def(
      "dependent_launch", [] { return nf12_dependent_launch() != 0; },
      "What was set; at first True.");
}
