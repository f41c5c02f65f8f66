// Checks of texts that may be any bytes.
#include <string_view>

#include "grace/abi.h"
#include "grace/utf8.h"

// Text i is utf8[offsets[i] .. offsets[i + 1]]; the caller has checked the offsets. Writes to
// `found` the first text that is not UTF-8, and the first that is not above the one before it,
// byte by byte; -1 if there is none.
GRACE_API int32_t grace_check_texts(int64_t count, const int64_t* offsets, const uint8_t* utf8,
                                    int64_t* found) {
  return grace::guarded([&] {
    found[0] = found[1] = -1;
    std::string_view before;
    for (int64_t i = 0; i < count; ++i) {
      const std::string_view text(reinterpret_cast<const char*>(utf8) + offsets[i],
                                  static_cast<size_t>(offsets[i + 1] - offsets[i]));
      if (found[0] < 0 && !grace::is_utf8(text)) found[0] = i;
      if (found[1] < 0 && i > 0 && text <= before) found[1] = i;
      before = text;
    }
  });
}
