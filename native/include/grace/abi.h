// The border between Python and C++: plain C functions over raw pointers. A function returns 0, or
// 1 with the reason in grace_last_error(); nothing is thrown across it.
#pragma once

#include <cstdint>
#include <exception>
#include <stdexcept>

#define GRACE_API extern "C" __attribute__((visibility("default")))

namespace grace {

void set_last_error(const char* text) noexcept;

// Runs the body of an exported function and turns what it throws into a status.
template <typename Body>
int32_t guarded(Body&& body) noexcept {
  try {
    body();
    return 0;
  } catch (const std::exception& error) {
    set_last_error(error.what());
  } catch (...) {
    set_last_error("unknown C++ exception");
  }
  return 1;
}

inline void require(bool condition, const char* text) {
  if (!condition) throw std::invalid_argument(text);
}

}  // namespace grace
