// Bloom membership of up to 64 queries at once, in one pass over a row.
//
// A row is read nibble by nibble. For each nibble of a row and each value that it may have, a table
// holds one bit per query: whether that value has all the bits that the query asks of that nibble.
// The AND over a row's nibbles is then the set of queries that the row may hold. A nibble's sixteen
// entries are one line of 128 bytes, so that the lanes of a warp never wait for each other.
#pragma once

#include "grace/match.h"

namespace grace {

constexpr int64_t kTabledQueries = 64;
constexpr uint32_t kNibbleValues = 16;

// Tables of one request are [bits / 4, 16].
GRACE_HOST_DEVICE int64_t bloom_table_entries(uint32_t bits) {
  return int64_t{bits / 4} * kNibbleValues;
}

// The entry of one nibble and one value of it; count is at most 64.
GRACE_HOST_DEVICE uint64_t bloom_table_entry(const uint64_t* queries, int64_t count,
                                             BloomShape shape, uint32_t nibble, uint32_t value) {
  uint64_t held = 0;
  for (int64_t q = 0; q < count; ++q) {
    bool holds = true;
    for (uint32_t i = 0; i < shape.hashes; ++i) {
      const uint32_t bit = bloom_bit(queries[q], i, shape);
      if (bit / 4 == nibble && ((value >> (bit % 4)) & 1) == 0) holds = false;
    }
    held |= static_cast<uint64_t>(holds) << q;
  }
  return held;
}

// Of the queries in `held`, those that also the 64 bits of word `place` of a row leave possible.
GRACE_HOST_DEVICE uint64_t still_held(uint64_t held, uint64_t word, uint32_t place,
                                      const uint64_t* tables) {
  const uint64_t* line = tables + place * 16 * kNibbleValues;
  for (uint32_t nibble = 0; nibble < 16; ++nibble) {
    held &= line[nibble * kNibbleValues + static_cast<uint32_t>((word >> (4 * nibble)) & 15)];
  }
  return held;
}

}  // namespace grace
