// From a number of tokens that is known when a launch is planned to the kernel compiled for it.
// Host code; pure.
#pragma once
#include <cstddef>
#include <iterator>
#include <type_traits>

namespace nf12 {

// What `body` makes of `tokens` as a std::integral_constant; of the last of `forms` if it is none
// of them.
template <const auto& forms, size_t i = 0, typename Body>
constexpr auto with_tokens(int tokens, const Body& body) {
  if constexpr (i + 1 < std::size(forms))
    if (tokens != forms[i]) return with_tokens<forms, i + 1>(tokens, body);
  return body(std::integral_constant<int, forms[i]>());
}

}  // namespace nf12
