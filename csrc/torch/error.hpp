// Errors of the operators: "nf12::gemm: x has 4100 columns, the packed weight has in_features
// 4096".
#pragma once
#include <cstdint>
#include <span>
#include <sstream>
#include <stdexcept>
#include <string>

namespace nf12::torch_ops {

inline std::string shape_text(std::span<const int64_t> shape) {
  std::ostringstream text;
  for (size_t i = 0; i < shape.size(); ++i) text << (i == 0 ? "[" : ", ") << shape[i];
  text << (shape.empty() ? "[]" : "]");
  return text.str();
}

// Names its operator already.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Throws what torch turns into a RuntimeError. Out of line and cold: a check costs its compare.
template <typename... Parts>
[[noreturn, gnu::cold, gnu::noinline]] void fail(const char* op, const Parts&... parts) {
  std::ostringstream text;
  text << "nf12::" << op << ": ";
  (text << ... << parts);
  throw Error(text.str());
}

}  // namespace nf12::torch_ops
