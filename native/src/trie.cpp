// The trie's arrays from ads in SID order: one pass to count the nodes, one to fill the arrays.
#include <cstdint>
#include <limits>
#include <vector>

#include "grace/abi.h"

namespace {

// The first position at which an ad's SID differs from the one before it; `length` if it is the
// same.
int32_t first_difference(const uint16_t* tokens, int64_t ad, int32_t length) {
  if (ad == 0) return 0;
  const uint16_t* sid = tokens + ad * length;
  int32_t t = 0;
  while (t < length && sid[t] == sid[t - length]) ++t;
  return t;
}

}  // namespace

// tokens uint16 [ads, length] ascending; level_counts int64 [length + 1], the root's 1 first.
GRACE_API int32_t grace_trie_count(int64_t ads, const uint16_t* tokens, int32_t length,
                                   int64_t* level_counts) {
  return grace::guarded([&] {
    std::fill(level_counts, level_counts + length + 1, 0);
    level_counts[0] = 1;
    for (int64_t ad = 0; ad < ads; ++ad) {
      const int32_t d = first_difference(tokens, ad, length);
      if (d < length) {
        const uint16_t* sid = tokens + ad * length;
        grace::require(ad == 0 || sid[d] > sid[d - length], "trie_count: ads are not in SID order");
      }
      for (int32_t t = d; t < length; ++t) ++level_counts[t + 1];
    }
  });
}

// node_offsets int32 [internal + 1], csr_tokens uint16 [entries], ad_offsets int64 [leaves + 1].
GRACE_API int32_t grace_trie_fill(int64_t ads, const uint16_t* tokens, int32_t length,
                                  const int64_t* level_counts, int32_t* node_offsets,
                                  uint16_t* csr_tokens, int64_t* ad_offsets) {
  return grace::guarded([&] {
    std::vector<int64_t> next(length + 2, 0);  // next node of each level
    for (int32_t t = 0; t <= length; ++t) next[t + 1] = next[t] + level_counts[t];
    const int64_t first_leaf = next[length];
    const int64_t nodes = next[length + 1];
    grace::require(nodes <= std::numeric_limits<int32_t>::max(), "trie_fill: too many nodes");
    node_offsets[0] = 0;
    for (int64_t ad = 0; ad < ads; ++ad) {
      const uint16_t* sid = tokens + ad * length;
      for (int32_t t = first_difference(tokens, ad, length); t < length; ++t) {
        const int64_t node = next[t + 1]++;
        csr_tokens[node - 1] = sid[t];
        if (t + 1 < length) {
          node_offsets[node] = static_cast<int32_t>(next[t + 2] - 1);
        } else {
          ad_offsets[node - first_leaf] = ad;
        }
      }
    }
    node_offsets[first_leaf] = static_cast<int32_t>(nodes - 1);
    ad_offsets[nodes - first_leaf] = ads;
  });
}
