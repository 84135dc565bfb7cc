// Memory that notices when somebody steps outside it, and threads to run kernels on.
#pragma once
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

#include "csrc/cpu/cpu.hpp"
#include "tests/cpp/expect.hpp"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

namespace nf12::test {

// `count` elements between two guard zones. The content starts as a sentinel pattern, so that an
// element nobody wrote is seen. Under AddressSanitizer the zones are poisoned: reads count too.
template <typename T>
class GuardedBuffer {
 public:
  explicit GuardedBuffer(int64_t count)
      : count_(count), bytes_(2 * kGuardBytes + count * sizeof(T), kSentinel) {
#if defined(__SANITIZE_ADDRESS__)
    __asan_poison_memory_region(bytes_.data(), kGuardBytes);
    __asan_poison_memory_region(bytes_.data() + bytes_.size() - kGuardBytes, kGuardBytes);
#endif
  }
  ~GuardedBuffer() {
#if defined(__SANITIZE_ADDRESS__)
    __asan_unpoison_memory_region(bytes_.data(), bytes_.size());
#endif
    for (size_t i = 0; i < kGuardBytes; ++i) {
      EXPECT(bytes_[i] == kSentinel, "written ", kGuardBytes - i, " bytes before a buffer");
      EXPECT(bytes_[bytes_.size() - kGuardBytes + i] == kSentinel, "written ", i + 1,
             " bytes past a buffer");
    }
  }
  GuardedBuffer(const GuardedBuffer&) = delete;

  T* data() { return reinterpret_cast<T*>(bytes_.data() + kGuardBytes); }
  const T* data() const { return reinterpret_cast<const T*>(bytes_.data() + kGuardBytes); }
  T& operator[](int64_t i) { return data()[i]; }
  const T& operator[](int64_t i) const { return data()[i]; }
  int64_t size() const { return count_; }
  std::vector<T> copy() const { return std::vector<T>(data(), data() + count_); }

 private:
  static constexpr size_t kGuardBytes = 4096;
  static constexpr uint8_t kSentinel = 0xA5;
  int64_t count_;
  std::vector<uint8_t> bytes_;
};

// Splits a range into `num_threads` uneven parts, each on a thread of its own, grain ignored: the
// harshest schedule that the contract of Parallel allows.
template <int num_threads>
void run_threads(int64_t begin, int64_t end, int64_t /*grain*/,
                 void (*body)(int64_t, int64_t, void*), void* context) {
  std::vector<std::thread> threads;
  for (int i = num_threads; i-- > 0;) {  // the last part first
    const int64_t count = end - begin;
    const int64_t first = begin + count * i * i / (num_threads * num_threads);
    const int64_t last = begin + count * (i + 1) * (i + 1) / (num_threads * num_threads);
    if (first < last) threads.emplace_back(body, first, last, context);
  }
  for (std::thread& thread : threads) thread.join();
}

inline void run_inline(int64_t begin, int64_t end, int64_t, void (*body)(int64_t, int64_t, void*),
                       void* context) {
  body(begin, end, context);
}

inline constexpr cpu::Parallel kOneThread{run_inline, 1};
inline constexpr cpu::Parallel kThreeThreads{run_threads<3>, 3};

inline std::vector<cpu::Level> supported_levels() {
  std::vector<cpu::Level> levels;
  for (int i = 0; i < cpu::kLevels; ++i) {
    const auto level = static_cast<cpu::Level>(i);
    if (cpu::level_supported(level)) levels.push_back(level);
  }
  return levels;
}

}  // namespace nf12::test
