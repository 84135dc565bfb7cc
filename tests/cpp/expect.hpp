// A test is a function; EXPECT reports and goes on, so that one run shows every failure.
//
//   TEST(name) { EXPECT(a == b, "a is ", a, ", b is ", b); }
//
// expect.cpp has main(): without arguments every test runs, else those whose names are given. After
// -x as the first argument the first failure ends the program.
#pragma once
#include <sstream>
#include <string>

namespace nf12::test {

using TestBody = void (*)();

struct Registration {
  Registration(const char* name, TestBody body);
};

void report_failure(const char* file, int line, const char* condition, const std::string& message);

template <typename... Parts>
std::string join(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  return text.str();
}

}  // namespace nf12::test

#define TEST(name)                                                               \
  static void test_##name();                                                     \
  static const nf12::test::Registration registration_##name(#name, test_##name); \
  static void test_##name()

#define EXPECT(condition, ...)                                                                   \
  do {                                                                                           \
    if (!(condition)) {                                                                          \
      nf12::test::report_failure(__FILE__, __LINE__, #condition, nf12::test::join(__VA_ARGS__)); \
    }                                                                                            \
  } while (false)
