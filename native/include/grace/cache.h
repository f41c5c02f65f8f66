// Reading memory that is in no cache: ask early, use later.
#ifndef GRACE_CACHE_H_
#define GRACE_CACHE_H_

#include <cstdint>

namespace grace {

constexpr int64_t kLineBytes = 64;
constexpr int64_t kAhead = 32;  // elements between asking and using

inline void prefetch(const void* address) { __builtin_prefetch(address); }

}  // namespace grace

#endif  // GRACE_CACHE_H_
