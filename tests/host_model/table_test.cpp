// A table of measured paths: which row counts, and what happens where its path takes no problem.
#include "csrc/gemm/table.hpp"

#include <string>

#include "tests/cpp/codec.hpp"
#include "tests/cpp/expect.hpp"

namespace nf12::test {
namespace {

const GemmTable kTable({
    {4096, 4096, 17, 64, GemmPath::kBuffered},
    {4096, 4096, 1, 16, GemmPath::kMatrix},
    {4096, 1024, 1, 64, GemmPath::kBuffered},
    {512, 4096, 3, 3, GemmPath::kFused},
    {512, 4096, 9, INT64_MAX, GemmPath::kMatrix},
});

std::string found(int64_t n, int64_t k, int64_t m) {
  const auto path = kTable.find(n, k, m);
  return path ? name_of(*path) : "none";
}
void expect_found(int64_t n, int64_t k, int64_t m, const std::string& wanted) {
  EXPECT(found(n, k, m) == wanted, n, " x ", k, ", m ", m, ": ", found(n, k, m));
}

TEST(a_row_is_of_its_shape_and_range) {
  for (const int64_t m : {1, 16}) expect_found(4096, 4096, m, "matrix");
  for (const int64_t m : {17, 64}) expect_found(4096, 4096, m, "buffered");
  expect_found(4096, 4096, 65, "none");
  expect_found(4096, 1024, 1, "buffered");
  expect_found(4096, 1024, 65, "none");
  for (const int64_t m : {1, 2, 4, 8}) expect_found(512, 4096, m, "none");
  expect_found(512, 4096, 3, "fused");
  for (const int64_t m : {int64_t{9}, INT64_MAX}) expect_found(512, 4096, m, "matrix");
  expect_found(4096, 512, 1, "none");
  expect_found(4096, 2048, 1, "none");  // behind a row of another k alone
  expect_found(1024, 4096, 9, "none");  // and of another n alone
  expect_found(1, 1, 1, "none");
  expect_found(INT64_MAX, INT64_MAX, 1, "none");
  EXPECT(!GemmTable({}).find(4096, 4096, 1), "an empty table");
}

TEST(of_overlapping_rows_the_later_one_counts) {
  const GemmTable table({{16, 64, 1, 100, GemmPath::kMatrix}, {16, 64, 8, 10, GemmPath::kFused}});
  EXPECT(table.find(16, 64, 7) == GemmPath::kMatrix, "before both");
  EXPECT(table.find(16, 64, 8) == GemmPath::kFused, "in both");
}

TEST(a_path_that_does_not_take_the_problem_leaves_it_to_the_rules) {
  GemmTraits traits = rdna4_traits(32);
  traits.fused = 0xFFFF;
  traits.matrix = 0xF;
  traits.combine = traits.unpack = true;
  const PackedView w = weight_of(512, 4096);
  const auto path = [&](const GemmTable* table, int64_t m) {
    return select_gemm(table, traits, {w, m, w.k}).path;
  };
  EXPECT(path(nullptr, 3) == GemmPath::kFused, "the rules");
  const GemmTable other(
      {{512, 4096, 1, 2, GemmPath::kMatrix}, {512, 4096, 3, 99, GemmPath::kFused}});
  EXPECT(path(&other, 1) == GemmPath::kMatrix, "the table");
  EXPECT(path(&other, 3) == GemmPath::kFused, "both");
  EXPECT(path(&other, 17) == GemmPath::kMatrix, "fused takes 16 tokens");
  EXPECT(path(&other, 100) == GemmPath::kMatrix, "past the table");
}

}  // namespace
}  // namespace nf12::test
