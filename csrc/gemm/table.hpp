// Paths that someone measured on their own GPU (`nf12 tune`), in front of select_gemm's rules.
// Pure.
//
// A row is of one weight's shape and a range of m. Rows of a shape should not overlap; where they
// do, the one that begins last counts.
#pragma once
#include <algorithm>
#include <cstdint>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "csrc/gemm/select.hpp"

namespace nf12 {

struct GemmTableRow {
  int64_t n, k;
  int64_t m_first, m_last;  // both included
  GemmPath path;
};

class GemmTable {
 public:
  explicit GemmTable(std::vector<GemmTableRow> rows) : rows_(std::move(rows)) {
    std::ranges::sort(rows_, {}, key);
  }

  // 20 ns for a few hundred rows, in the way of every call.
  std::optional<GemmPath> find(int64_t n, int64_t k, int64_t m) const {
    const auto after = std::ranges::upper_bound(rows_, std::tuple(n, k, m), {}, key);
    if (after == rows_.begin()) return std::nullopt;
    const GemmTableRow& row = *std::prev(after);
    if (row.n != n || row.k != k || m > row.m_last) return std::nullopt;
    return row.path;
  }

  const std::vector<GemmTableRow>& rows() const { return rows_; }

 private:
  static std::tuple<int64_t, int64_t, int64_t> key(const GemmTableRow& row) {
    return {row.n, row.k, row.m_first};
  }

  std::vector<GemmTableRow> rows_;  // in the order of their keys
};

// What the table says, as long as that path takes the problem: it was measured with rows of x at
// good addresses and without a bias, and may come from another GPU of the same name.
inline GemmChoice select_gemm(const GemmTable* table, const GemmTraits& traits,
                              const GemmProblem& problem) {
  if (table != nullptr) {
    if (const auto path = table->find(problem.weight.n, problem.weight.k, problem.m))
      if (const GemmChoice choice = choice_of(*path, traits, problem)) return choice;
  }
  return select_gemm(traits, problem);
}

}  // namespace nf12
