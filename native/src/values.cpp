// The values that a build has read of a set or an attribute: ids count up by first use.
#include <algorithm>
#include <vector>

#include "grace/abi.h"
#include "grace/interner.h"

namespace grace {

namespace {

using Values = Interner<char>;

constexpr int64_t kBlock = 256;  // texts that are looked up together
constexpr int32_t kFew = 1 << 12;  // values that fit the caches

Values& values_of(void* handle) { return *static_cast<Values*>(handle); }

}  // namespace

GRACE_API int32_t grace_values_new(void** handle) {
  return guarded([&] { *handle = new Values(); });
}

GRACE_API int32_t grace_values_free(void* handle) {
  return guarded([&] { delete &values_of(handle); });
}

// Text i is utf8[offsets[i] .. offsets[i + 1]].
GRACE_API int32_t grace_values_add(void* handle, int64_t count, const int64_t* offsets,
                                   const char* utf8) {
  return guarded([&] {
    for (int64_t i = 0; i < count; ++i) {
      values_of(handle).find_or_add(utf8 + offsets[i], offsets[i + 1] - offsets[i]);
    }
  });
}

// ids int32 [count]: -1 for texts that were not added.
GRACE_API int32_t grace_values_find(void* handle, int64_t count, const int64_t* offsets,
                                    const char* utf8, int32_t* ids) {
  return guarded([&] {
    const Values& values = values_of(handle);
    for (int64_t i = 0; i < count && values.size() < kFew; ++i) {
      ids[i] = values.find(utf8 + offsets[i], offsets[i + 1] - offsets[i]);
    }
    if (values.size() < kFew) return;
    std::vector<Values::Lookup> lookups;
    for (int64_t first = 0; first < count; first += kBlock) {
      lookups.clear();
      for (int64_t i = first; i < std::min(first + kBlock, count); ++i) {
        lookups.push_back(
            {&values, utf8 + offsets[i], offsets[i + 1] - offsets[i], ids + i});
      }
      Values::find(lookups);
    }
  });
}

}  // namespace grace
