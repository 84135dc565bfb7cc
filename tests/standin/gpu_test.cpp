// csrc/gpu and csrc/runtime below torch, on the stand-in driver: exactly as much memory as they ask
// for, and the CPU backend's bits. Sums are of small integers, exact in any order.
#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <thread>

#include "csrc/gpu/gpu.hpp"
#include "tests/cpp/codec.hpp"
#include "tests/standin/control.h"

namespace nf12::test {
namespace {

using runtime::Device;
using runtime::Queue;

// A driver with these devices, as in a process that has used none yet.
void fresh_driver(std::initializer_list<const char*> archs) {
  standin_reset();
  for (const char* arch : archs) standin_add_device(arch, 32);
  runtime::use_driver(NF12_STANDIN_PATH);
}

const Device& fresh_gpu() {
  fresh_driver({"gfx1201"});
  return Device::of(0);
}

// How many of the driver's calls have all of these in their line of the log.
int calls_with(std::initializer_list<const char*> parts) {
  int count = 0;
  for (int i = 0; const char* call = standin_call(i); ++i)
    count += std::ranges::all_of(
        parts, [call](const char* part) { return std::strstr(call, part) != nullptr; });
  return count;
}

uint16_t small_integer(Random& random) {
  const int value = static_cast<int>(random() % 15) - 7;
  return static_cast<uint16_t>(__builtin_bit_cast(uint32_t, static_cast<float>(value)) >> 16);
}

struct Problem {
  Weights w;
  PackedBytes packed;
  GuardedBuffer<uint16_t> x;
  std::vector<uint16_t> bias;
  int64_t m;

  Problem(int64_t m, int64_t n, int64_t k, Random& random) : w(1, n, k), x(m * k), m(m) {
    for (int64_t row = 0; row < n; ++row)
      for (int64_t column = 0; column < k; ++column) w.at(0, row, column) = small_integer(random);
    for (int64_t i = 0; i < x.size(); ++i) x[i] = small_integer(random);
    for (int64_t i = 0; i < n; ++i) bias.push_back(small_integer(random));
    packed = pack(w, -1, kOneThread, cpu::Level::kPortable);
  }
  PackedView view() const { return view_of(packed, w.n, w.k); }
};

std::vector<uint16_t> on_cpu(Problem& problem) {
  const int64_t m = problem.m, n = problem.w.n, k = problem.w.k;
  constexpr cpu::Level level = cpu::Level::kPortable;
  GuardedBuffer<uint16_t> y(m * n);
  GuardedBuffer<float> workspace(
      static_cast<int64_t>(cpu::gemm_workspace_bytes(m, n, k, level) / sizeof(float)));
  cpu::gemm({.x = problem.x.data(),
             .x_row_stride = k,
             .m = m,
             .w = problem.view(),
             .bias = problem.bias.data(),
             .y = y.data(),
             .y_row_stride = n,
             .workspace = workspace.data()},
            level, kOneThread);
  return y.copy();
}

std::vector<uint16_t> on_gpu(Problem& problem, const GemmChoice& choice, Queue& queue) {
  GuardedBuffer<uint16_t> y(problem.m * problem.w.n);
  const gpu::GemmLaunch launch =
      gpu::plan_gemm({problem.x.data(), problem.w.k, problem.m, problem.view(), problem.bias.data(),
                      y.data(), problem.w.n},
                     choice, gpu::gemm_traits(queue.device()));
  GuardedBuffer<uint8_t> workspace(static_cast<int64_t>(launch.workspace_bytes));
  gpu::gemm(queue, launch, workspace.data());
  return y.copy();
}

TEST(gemm_gives_the_cpus_bits) {
  const Device& device = fresh_gpu();
  Queue queue(device, nullptr);
  Random random(1);
  for (const int64_t m : {1, 4, 15, 16, 40, 130}) {
    for (const auto& [n, k] : {std::pair{33, 200}, {16, 2100}}) {
      Problem problem(m, n, k, random);
      for (const GemmPath path : {GemmPath::kFused, GemmPath::kMatrix}) {
        const GemmChoice choice = choice_of(path, gpu::gemm_traits(device), {problem.view(), m, k});
        EXPECT(choice || (path == GemmPath::kFused && m > 16), choice.refusal);
        if (choice)
          expect_equal_bits(on_gpu(problem, choice, queue), on_cpu(problem),
                            join(name_of(path), " ", m, " x ", n, " x ", k));
      }
    }
  }
}

TEST(unpack_and_gather_give_the_cpus_bits) {
  Queue queue(fresh_gpu(), nullptr);
  Random random(2);
  for (const int64_t k : {1, 64, 130}) {
    Weights w(1, 37, k);
    fill_like_a_model(w, random, 20);
    const PackedBytes packed = pack(w, -1, kOneThread, cpu::Level::kPortable);
    GuardedBuffer<uint16_t> dense(37 * k);
    gpu::unpack(queue, {view_of(packed, 37, k), 0, 0}, 1, dense.data());
    expect_equal_bits(dense.copy(), w.expert(0), join("unpack, k ", k));

    const std::vector<int32_t> ids = {36, 0, 5};
    GuardedBuffer<uint16_t> rows(3 * k);
    gpu::gather(queue, view_of(packed, 37, k), ids.data(), 4, 3, rows.data());
    for (size_t i = 0; i < ids.size(); ++i)
      EXPECT(std::equal(rows.data() + i * k, rows.data() + (i + 1) * k, &dense[ids[i] * k]),
             "gather of row ", ids[i], ", k ", k);
  }
}

TEST(a_gpu_is_known_by_its_exact_name) {
  fresh_driver({"gfx1200", "gfx1201:sramecc-:xnack-", "gfx12010", "gfx12", "gfx1100"});
  for (const int device : {0, 1}) EXPECT(Device::of(device).has_kernels(), "device ", device);
  EXPECT(Device::of(1).arch() == "gfx1201", Device::of(1).arch());
  const int loads = calls_with({"hipModuleLoadData"});
  for (const int device : {2, 3, 4}) {
    EXPECT(!Device::of(device).has_kernels(), "device ", device);
    EXPECT(!Device::of(device).has(runtime::Kernel::check), "device ", device);
  }
  EXPECT(calls_with({"hipModuleLoadData"}) == loads, "code was loaded for another GPU");
}

TEST(modules_load_once_and_while_a_stream_is_captured) {
  fresh_driver({"gfx1201"});
  standin_capture(1);
  const Device& device = Device::of(0);
  EXPECT(device.has_kernels() && &Device::of(0) == &device, "the same device");
  EXPECT(calls_with({"hipModuleLoadData"}) == 7, calls_with({"hipModuleLoadData"}), " modules");
  EXPECT(calls_with({"hipThreadExchange", "\"mode\": 0"}) == 1, "the mode was not set back");
}

TEST(work_goes_to_the_queues_device_and_stream) {
  fresh_driver({"gfx1201", "gfx1201"});
  void* stream = standin_stream(1);
  const std::string in_log = join("\"stream\": ", reinterpret_cast<uintptr_t>(stream));
  uint32_t source[4] = {1, 2, 3, 4}, target[4] = {};
  for (void* where : {stream, static_cast<void*>(nullptr)}) {
    const Device& device = Device::of(1);
    Queue queue(device, where);
    queue.zero(target, sizeof(target));
    queue.to_device(target, source, 8);
    uint32_t back[4] = {};
    queue.to_host(back, target, sizeof(back));
    EXPECT(back[0] == 1 && back[1] == 2 && back[3] == 0, "to_host did not wait");
  }
  for (const char* call : {"hipMemset", "HtoD", "DtoH"}) {
    EXPECT(calls_with({call, "\"device\": 1"}) == 2, call);
    EXPECT(calls_with({call, in_log.c_str()}) == 1, call);
  }
  EXPECT(calls_with({"hipStreamSynchronize", in_log.c_str()}) == 1, "waited for another stream");
  EXPECT(calls_with({"hipSetDevice", "\"device\": 1"}) ==
             calls_with({"hipSetDevice", "\"device\": 0"}),
         "the thread's device was not set back");
}

TEST(launches_go_to_the_queues_stream) {
  fresh_driver({"gfx1201", "gfx1201"});
  void* stream = standin_stream(1);
  Random random(3);
  Problem problem(2, 16, 64, random);
  Queue queue(Device::of(1), stream);
  const GemmChoice choice = select_gemm(gpu::gemm_traits(Device::of(1)), {problem.view(), 2, 64});
  expect_equal_bits(on_gpu(problem, choice, queue), on_cpu(problem), "2 x 16 x 64");
  const std::string in_log = join("\"stream\": ", reinterpret_cast<uintptr_t>(stream));
  EXPECT(calls_with({"hipModuleLaunchKernel", in_log.c_str()}) == 1, "another stream");
}

TEST(threads_share_the_first_call) {
  fresh_driver({"gfx1201"});
  std::vector<const Device*> seen(8);
  std::vector<std::thread> threads;
  for (const Device*& device : seen) threads.emplace_back([&device] { device = &Device::of(0); });
  for (std::thread& thread : threads) thread.join();
  for (const Device* device : seen)
    EXPECT(device == seen[0] && device->has_kernels(), "not the same device");
}

TEST(a_failure_carries_the_drivers_text) {
  Queue queue(fresh_gpu(), nullptr);
  uint32_t word = 7;
  standin_fail("hipMemsetD32Async", 0, 2, "out of memory");
  std::string text;
  try {
    queue.fill_words(&word, 9, 1);
  } catch (const std::runtime_error& error) {
    text = error.what();
  }
  EXPECT(text == "hipMemsetD32Async: out of memory", text);
  EXPECT(word == 7 && standin_last_error() == 0, word);
  queue.fill_words(&word, 9, 1);
  EXPECT(word == 9, word);
}

}  // namespace
}  // namespace nf12::test
