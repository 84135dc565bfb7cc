#include "tests/cpp/expect.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace nf12::test {
namespace {

struct NamedTest {
  const char* name;
  TestBody body;
};

std::vector<NamedTest>& all_tests() {
  static std::vector<NamedTest> tests;
  return tests;
}

constexpr int kShownFailures = 20;  // of one test; a broken kernel fails at every weight
int failures = 0;
bool one_will_do = false;

}  // namespace

Registration::Registration(const char* name, TestBody body) { all_tests().push_back({name, body}); }

void report_failure(const char* file, int line, const char* condition, const std::string& message) {
  if (++failures > kShownFailures) return;
  std::fprintf(stderr, "%s:%d: %s: %s\n", file, line, condition, message.c_str());
  if (one_will_do) std::_Exit(1);
}

}  // namespace nf12::test

int main(int argc, char** argv) {
  using namespace nf12::test;
  int run = 0, failed = 0;
  if (argc > 1 && std::strcmp(argv[1], "-x") == 0) {
    one_will_do = true;
    --argc, ++argv;
  }
  for (const NamedTest& test : all_tests()) {
    const auto is_it = [&](const char* name) { return std::strcmp(name, test.name) == 0; };
    if (argc > 1 && std::none_of(argv + 1, argv + argc, is_it)) continue;
    failures = 0;
    test.body();
    ++run;
    failed += failures != 0;
    std::printf("%s %s\n", failures == 0 ? "ok  " : "FAIL", test.name);
  }
  std::printf("%d of %d tests passed\n", run - failed, run);
  return run == 0 || failed != 0;
}
