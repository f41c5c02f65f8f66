// The table rows of a child entry's matcher, as index/matchers/node_matchers.py stores them: one,
// or one per partition. Like match.h, nothing of torch or the CUDA runtime.
#ifndef GRACE_MATCHER_IDS_H_
#define GRACE_MATCHER_IDS_H_

#include <cstdint>

#include "grace/match.h"

struct GraceIdLevel {
  int64_t first_entry;
  int64_t first_id;
  int64_t width;  // ids per entry
};

struct GraceMatcherIds {
  const int32_t* ids;          // entry j has id j alone, unless one of the next two is given
  const int32_t* offsets;      // dynamic: entry j's ids are offsets[j] .. offsets[j + 1]
  const GraceIdLevel* levels;  // static: ascending by first entry
  int64_t num_levels;
};

namespace grace {

struct IdRange {
  int64_t begin;
  int64_t end;
};

GRACE_HOST_DEVICE IdRange ids_of(const GraceMatcherIds& matcher, int64_t entry) {
  if (matcher.offsets != nullptr) return {matcher.offsets[entry], matcher.offsets[entry + 1]};
  if (matcher.levels == nullptr) return {entry, entry + 1};
  int64_t level = matcher.num_levels - 1;
  while (entry < matcher.levels[level].first_entry) --level;
  const GraceIdLevel& at = matcher.levels[level];
  const int64_t begin = at.first_id + (entry - at.first_entry) * at.width;
  return {begin, begin + at.width};
}

// Some row of the entry's bitmask matcher allows all that the user has.
GRACE_HOST_DEVICE bool entry_contains_all(const GraceMatcherIds& matcher, const uint64_t* table,
                                          int64_t entry, const uint64_t* user, int32_t words) {
  const IdRange ids = ids_of(matcher, entry);
  for (int64_t i = ids.begin; i < ids.end; ++i) {
    if (contains_all(table + int64_t{matcher.ids[i]} * words, user, words)) return true;
  }
  return false;
}

// Some row of the entry's Bloom matcher may hold one of the user's values.
GRACE_HOST_DEVICE bool entry_contains_any(const GraceMatcherIds& matcher, const uint64_t* table,
                                          const uint8_t* star, int64_t entry,
                                          const uint64_t* queries, int64_t count,
                                          BloomShape shape) {
  const IdRange ids = ids_of(matcher, entry);
  for (int64_t i = ids.begin; i < ids.end; ++i) {
    const int64_t row = matcher.ids[i];
    if (contains_any(table + row * (shape.bits / 64), star[row] != 0, queries, count, shape)) {
      return true;
    }
  }
  return false;
}

}  // namespace grace

#endif  // GRACE_MATCHER_IDS_H_
