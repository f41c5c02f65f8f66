// A rule is the AND of its components: it has one row of each. The form of a component says what a
// row holds, what a request asks, and which rows the request passes. native/src/forms has a file
// for each form, and index/forms has its Python half.
#pragma once

#include <memory>
#include <vector>

#include "grace/abi.h"

namespace grace::exact {

constexpr int32_t kBlock = 64;  // rows that are tested together: their lines fit the L1 cache

// Memory that is in no cache is prefetched early and used later.
constexpr int64_t kLineBytes = 64;

inline void prefetch(const void* address) { __builtin_prefetch(address); }

// Throws unless offsets[0] .. offsets[count] ascend from 0 or more.
template <typename Offset>
void require_offsets(const Offset* offsets, int64_t count, const char* text) {
  require(offsets[0] >= 0, text);
  for (int64_t i = 0; i < count; ++i) require(offsets[i] <= offsets[i + 1], text);
}

// The first array.
template <typename T>
T* array_of(const void* asked) {
  return *static_cast<T* const*>(asked);
}

// A batch asks a component by a struct: the addresses of a form's arrays for all requests, and then
// their lengths.
class Component {
 public:
  virtual ~Component() = default;

  // Throws if the requests of a batch ask what cannot be tested.
  virtual void require_valid(const void*, int64_t) const {}

  // Prepares `marks`, which are zero, for the tests of one request; `unmark` makes them zero again.
  virtual void mark(const void*, int64_t, std::vector<uint64_t>&) const {}
  virtual void unmark(const void*, int64_t, std::vector<uint64_t>&) const {}

  // Writes whether the request passes each of `count` rows, at most kBlock.
  virtual void test(const void* asked, int64_t request, const std::vector<uint64_t>& marks,
                    const int32_t* rows, int32_t count, bool* passes) const = 0;
};

// Gives the matcher of this handle its next component, before the first match.
void add_component(uint64_t handle, std::unique_ptr<const Component> component);

}  // namespace grace::exact
