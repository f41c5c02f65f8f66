// The texts of a set, an attribute or a property that a build has read, each with an id.
#include "grace/abi.h"
#include "grace/interner.h"

namespace grace {

using Values = Interner<char>;

GRACE_API int32_t grace_values_new(void** values) {
  return guarded([&] { *values = new Values(); });
}

GRACE_API int32_t grace_values_free(void* values) {
  return guarded([&] { delete static_cast<Values*>(values); });
}

// Text i is utf8[offsets[i] .. offsets[i + 1]].
GRACE_API int32_t grace_values_add(void* values, int64_t count, const int64_t* offsets,
                                   const char* utf8, int32_t* ids) {
  return guarded([&] {
    for (int64_t i = 0; i < count; ++i) {
      ids[i] =
          static_cast<Values*>(values)->find_or_add(utf8 + offsets[i], offsets[i + 1] - offsets[i]);
    }
  });
}

}  // namespace grace
