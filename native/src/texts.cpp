// Texts that may be any bytes: text i is utf8[offsets[i] .. offsets[i + 1]], and the caller has
// checked the offsets.
#include <string_view>

#include "grace/abi.h"
#include "grace/utf8.h"

namespace grace {

// Writes to `found` the first text that is not UTF-8, and the first that is not above the one
// before it, byte by byte; -1 if there is none.
GRACE_API int32_t grace_check_texts(int64_t count, const int64_t* offsets, const char* utf8,
                                    int64_t* found) {
  return guarded([&] {
    found[0] = found[1] = -1;
    std::string_view before;
    for (int64_t i = 0; i < count; ++i) {
      const std::string_view text(utf8 + offsets[i], offsets[i + 1] - offsets[i]);
      if (found[0] < 0 && !is_utf8(text)) found[0] = i;
      if (found[1] < 0 && i > 0 && text <= before) found[1] = i;
      before = text;
    }
  });
}

}  // namespace grace
