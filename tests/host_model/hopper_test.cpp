// The words of sm_90a in the host model: what a card would let pass silently must be reported.
#include "csrc/arch/hopper.hpp"

#include <array>
#include <functional>

#include "csrc/arch/host/model.hpp"
#include "tests/cpp/expect.hpp"

namespace nf12::test {
namespace {

using Kernel = std::function<void()>;

constexpr int kTokens = 32, kOperandBytes = 128 * kTokens;
constexpr int kBarrier = kOperandBytes, kOther = kBarrier + 1024;  // in bytes
constexpr int kSharedBytes = 2 * kOther;
constexpr uint32_t kOnes = 0x3F803F80;  // two BF16

alignas(16) const std::array<uint32_t, kOperandBytes / 4> ones = [] {
  std::array<uint32_t, kOperandBytes / 4> out;
  out.fill(kOnes);
  return out;
}();

// Over one cluster of blocks: the report, or "".
std::string report_of(const Kernel& kernel, int blocks = 1, int groups = 1) {
  for (uint64_t seed = 1; seed < 6; ++seed) {
    try {
      arch::host::run({"probe",
                       blocks,
                       1,
                       groups * arch::kGroupWaves,
                       seed,
                       {{ones.data(), sizeof(ones), false, "ones"}},
                       kSharedBytes,
                       blocks},
                      kernel);
    } catch (const arch::host::Report& report) {
      return report.what();
    }
  }
  return "";
}

void expect_reported(const Kernel& kernel, const std::string& part, int blocks = 1,
                     int groups = 1) {
  const std::string got = report_of(kernel, blocks, groups);
  EXPECT(got.find(part) != std::string::npos, "wanted a report with '", part, "', got '", got, "'");
}

uint32_t memory() {
  NF12_SHARED_ALIGNED(shared);
  return arch::shared_address(shared, 0);
}
int thread() { return arch::wave() * arch::kWave + arch::lane(); }
bool is_first() { return thread() == 0; }

uint32_t open_one(int arrivals = 1, bool shows = true) {
  const uint32_t barrier = memory() + kBarrier;
  if (is_first()) {
    arch::open_barrier(barrier, arrivals);
    if (shows) arch::show_barriers();
  }
  arch::sync_block();
  return barrier;
}
void copy_operand(uint32_t barrier, uint32_t bytes = kOperandBytes) {
  if (is_first()) {
    arch::expect_bytes(barrier, kOperandBytes);
    arch::copy_bytes(memory(), ones.data(), bytes, barrier);
  }
}
void store_operand() {
  for (int i = 16 * thread(); i < kOperandBytes; i += 16 * arch::kGroupLanes)
    arch::store_shared16(memory() + i, {{kOnes, kOnes, kOnes, kOnes}});
}

// One product of ones, `meanwhile` before it is awaited.
void multiply(const std::function<void(uint32_t*)>& meanwhile = {}, bool opens = true,
              bool awaits = true) {
  float sums[kTokens / 2] = {};
  uint32_t a[16];
  for (uint32_t& pair : a) pair = kOnes;
  if (opens) arch::open_products();
  arch::multiply_fragment(sums, a, 0, arch::operand_at(memory()));
  arch::close_products();
  if (meanwhile) meanwhile(a);
  if (!awaits) return;
  arch::await_products<0>();
  arch::settle_sums(sums);
  for (const float sum : sums) EXPECT(sum == 16, "16 ones add up to ", sum);
}

TEST(a_product_reads_what_a_copy_brought) {
  const Kernel right = [] {
    const uint32_t barrier = open_one();
    copy_operand(barrier);
    arch::wait_barrier(barrier, 0);
    multiply();
  };
  EXPECT(report_of(right).empty(), report_of(right));
  expect_reported(
      [] {
        const uint32_t barrier = open_one();
        copy_operand(barrier);
        if (arch::wave() != 2) arch::wait_barrier(barrier, 0);
        multiply();
      },
      "a copy");
}

TEST(a_product_reads_what_lanes_have_shown) {
  const auto kernel = [](bool shows, bool meets) {
    return [=] {
      store_operand();
      if (shows) arch::show_to_copies();
      if (meets) arch::sync_block();
      if (!shows) arch::show_to_copies();  // too late: whoever is read first may not have
      multiply();
    };
  };
  EXPECT(report_of(kernel(true, true)).empty(), report_of(kernel(true, true)));
  expect_reported(kernel(false, true), "to copies");
  expect_reported(kernel(true, false), "product of shared");
}

TEST(products_are_opened_and_awaited) {
  const auto kernel = [](const std::function<void(uint32_t*)>& meanwhile, bool opens, bool awaits) {
    return [=] {
      store_operand();
      arch::show_to_copies();
      arch::sync_block();
      multiply(meanwhile, opens, awaits);
    };
  };
  expect_reported(kernel({}, false, true), "without open_products");
  expect_reported(kernel({}, true, false), "has not awaited");
  expect_reported(kernel([](uint32_t* a) { a[2] = 0; }, true, true), "registers of A");
  expect_reported(kernel([](uint32_t*) { store_operand(); }, true, true), "not been awaited");
  expect_reported(
      [] {
        store_operand();
        arch::show_to_copies();
        arch::sync_block();
        if (arch::wave() != 3) multiply();
      },
      "await_products");
}

TEST(copies_have_barriers) {
  expect_reported(
      [] {
        const uint32_t barrier = open_one();
        copy_operand(barrier, kOperandBytes - 32);
        arch::wait_barrier(barrier, 0);
      },
      "wants 32 bytes more");
  expect_reported([] { copy_operand(open_one(1, false)); }, "has not been shown to them");
  expect_reported([] { copy_operand(open_one()); }, "ended");
}

TEST(a_copy_onto_bytes_in_use_is_reported) {
  const auto kernel = [](bool shows, bool meets) {
    return [=] {
      const uint32_t barrier = open_one();
      store_operand();
      if (shows) arch::show_to_copies();
      if (meets) arch::sync_block();
      copy_operand(barrier);
      arch::wait_barrier(barrier, 0);
    };
  };
  EXPECT(report_of(kernel(true, true)).empty(), report_of(kernel(true, true)));
  expect_reported(kernel(false, true), "to copies");
  expect_reported(kernel(true, false), "no barrier in between");
}

TEST(a_parity_means_the_phase_after_the_last_one) {
  expect_reported(
      [] {
        const uint32_t barrier = open_one();
        if (is_first())
          for (int i = 0; i < 3; ++i) arch::arrive_barrier(barrier);
        arch::sync_block();
        if (arch::wave() == 1) arch::wait_barrier(barrier, 0);
      },
      "already in phase 3");
}

TEST(what_copies_read_stays) {
  const auto kernel = [](int awaits_from, bool writes) {
    return [=] {
      const uint32_t barrier = open_one();
      if (is_first()) arch::expect_bytes(barrier, 16);
      arch::sync_block();
      arch::arrive_cluster();
      arch::wait_cluster();
      if (is_first()) {
        const uint32_t from = memory() + kOther;
        arch::store_shared16(from, {{1, 2, 3, 4}});
        arch::show_to_copies();
        arch::send_bytes(1 - arch::cluster_rank(), memory(), from, 16, barrier);
        if (awaits_from == 0) arch::await_boxes_read<0>();
        if (writes) arch::store_shared4(from, 5);
        if (awaits_from == 1) arch::await_boxes_read<0>();
      }
      arch::wait_barrier(barrier, 0);
    };
  };
  EXPECT(report_of(kernel(0, true), 2).empty(), report_of(kernel(0, true), 2));
  expect_reported(kernel(1, true), "not been awaited", 2);
  expect_reported(kernel(2, false), "ends while its copies", 2);
}

TEST(posted_words_are_watched_and_no_more) {
  const Kernel right = [] {
    if (arch::wave() == 0 && arch::lane() == 0) arch::post_word(memory(), -1);
    arch::sync_block();
    if (arch::wave() == 0 && arch::lane() == 0) arch::post_word(memory(), 7);
    if (arch::wave() > 0) arch::await_word(memory(), 7);
  };
  EXPECT(report_of(right).empty(), report_of(right));
  expect_reported([] { arch::posted_word(memory()); }, "nobody posted");
  expect_reported(
      [] {
        arch::post_word(memory(), 1);
        arch::load_shared4(memory());
      },
      "which is posted");
}

TEST(registers_are_taken_from_those_given) {
  const auto trade = []<int given, int taken>() {
    if (arch::wave() < arch::kGroupWaves)
      arch::give_registers<given>();
    else
      arch::take_registers<taken>();
  };
  const auto run = [&](const Kernel& kernel) { return report_of(kernel, 1, 3); };  // 168 a lane
  EXPECT(run([&] { trade.operator()<40, 232>(); }).empty(), "40 + 2 * 232 are 3 * 168");
  expect_reported([&] { trade.operator()<40, 240>(); }, "take_registers", 1, 3);
  expect_reported([&] { trade.operator()<176, 168>(); }, "where the wave has 168", 1, 3);
  expect_reported(
      [] {
        if (arch::wave() < 2) arch::give_registers<64>();
      },
      "registers a lane");
}

}  // namespace
}  // namespace nf12::test
