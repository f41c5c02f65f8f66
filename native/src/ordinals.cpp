// Ads by their ids: binary searches over `ad_lookup`, whose ids are anywhere in memory. Each step
// of a search waits for memory, so a block of searches takes its steps together, and asks early for
// what the next step reads.
#include <algorithm>
#include <cstdint>

#include "grace/abi.h"

namespace {

constexpr int64_t kBlock = 64;

// Writes the ordinals of `count` ids, at most kBlock of them. Every search has the same number of
// steps: after them, `first[i]` is the last place whose id is not above the wanted one, or 0.
void find_block(int64_t ads, const int64_t* ids, const int32_t* lookup, const int64_t* wanted,
                int64_t count, int64_t* ordinals) {
  int64_t first[kBlock] = {};
  int32_t middle[kBlock] = {};
  int64_t left = ads;
  while (left > 1) {
    const int64_t half = left / 2;
    for (int64_t i = 0; i < count; ++i) __builtin_prefetch(lookup + first[i] + half);
    for (int64_t i = 0; i < count; ++i) {
      middle[i] = lookup[first[i] + half];
      __builtin_prefetch(ids + middle[i]);
    }
    for (int64_t i = 0; i < count; ++i) first[i] += ids[middle[i]] <= wanted[i] ? half : 0;
    left -= half;
  }
  for (int64_t i = 0; i < count; ++i) {
    const int32_t ordinal = lookup[first[i]];
    ordinals[i] = ids[ordinal] == wanted[i] ? ordinal : -1;
  }
}

}  // namespace

// Writes the ordinals of `count` ad ids, -1 for those that are not there.
//   ids, lookup  [ads]: each ordinal's id, and the ordinals in ascending order of their ids
GRACE_API int32_t grace_find_ordinals(int64_t ads, const int64_t* ids, const int32_t* lookup,
                                      int64_t count, const int64_t* wanted, int64_t* ordinals) {
  return grace::guarded([&] {
    if (ads == 0) {
      std::fill_n(ordinals, count, -1);
      return;
    }
    for (int64_t begin = 0; begin < count; begin += kBlock) {
      const int64_t size = std::min(kBlock, count - begin);
      find_block(ads, ids, lookup, wanted + begin, size, ordinals + begin);
    }
  });
}
