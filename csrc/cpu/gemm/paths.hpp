// A level's two paths: fused for few tokens, blocked for many.
#pragma once
#include <utility>

#include "csrc/cpu/gemm/blocked.hpp"
#include "csrc/cpu/gemm/fused.hpp"

namespace nf12::cpu {

template <class V>
struct Paths {
  static size_t workspace_bytes(int64_t m, int64_t, int64_t k) {
    return activation_bytes<typename V::X>(m, k);
  }

  static void run(const GemmArgs& args, const Parallel& parallel) {
    if (args.m > V::kMaxFusedTokens) return Blocked<V>::run(args, parallel);
    run_fused(args, parallel, std::make_integer_sequence<int, V::kMaxFusedTokens>{});
  }

 private:
  template <int... kTokens>
  NF12_INLINE static void run_fused(const GemmArgs& args, const Parallel& parallel,
                                    std::integer_sequence<int, kTokens...>) {
    ((args.m == kTokens + 1 ? Fused<V, kTokens + 1>::run(args, parallel) : void()), ...);
  }
};

}  // namespace nf12::cpu
