// Masks of requests: bit i of an uint16 is request i of a group of up to 16.
#pragma once

#include <algorithm>
#include <cstdint>

#include "grace/parallel.h"

namespace grace {

constexpr int64_t kRequestsPerMask = 16;

// The mask of all requests of a group.
inline uint16_t mask_of(int64_t requests) { return static_cast<uint16_t>((1U << requests) - 1); }

// Calls body(range) for consecutive ranges that cover [0, count), `most` long except the last.
template <typename Body>
void parallel_ranges(int64_t count, int64_t most, int32_t threads, Body&& body) {
  parallel_tasks((count + most - 1) / most, threads, [&](int64_t task) {
    body(Range{task * most, std::min(count, (task + 1) * most)});
  });
}

}  // namespace grace
