// Decode-time tests of a run of child entries for one user.
#include <cstdint>

#include "grace/abi.h"
#include "grace/match.h"
#include "grace/matcher_ids.h"

// One set's matchers and the user's queries against them.
struct GraceBloomTest {
  GraceMatcherIds matcher;
  const uint64_t* table;    // [rows, bits / 64]
  const uint8_t* star;      // [rows]
  const uint64_t* queries;  // [num_queries]
  int64_t num_queries;
  uint32_t bits;
  uint32_t hashes;
};

// admitted uint8 [end - begin]: 1 for each entry in [begin, end) whose matchers all pass.
GRACE_API int32_t grace_admit_entries(int64_t begin, int64_t end, const GraceMatcherIds* bitmask,
                                      const uint64_t* bitmask_table, int32_t words,
                                      const uint64_t* user, const GraceBloomTest* sets,
                                      int32_t num_sets, uint8_t* admitted) {
  return grace::guarded([&] {
    for (int64_t entry = begin; entry < end; ++entry) {
      bool passes = grace::entry_contains_all(*bitmask, bitmask_table, entry, user, words);
      for (int32_t s = 0; s < num_sets && passes; ++s) {
        const GraceBloomTest& set = sets[s];
        passes = grace::entry_contains_any(set.matcher, set.table, set.star, entry, set.queries,
                                           set.num_queries, {set.bits, set.hashes});
      }
      admitted[entry - begin] = passes;
    }
  });
}
