// What "match" means. The CPU paths (g++) and the GPU kernels (nvcc) compile this one header, so it
// includes nothing of torch or the CUDA runtime.
//
// A bitmask row is `words` 64-bit words: the attribute values that an ad, or any ad under a node,
// allows. A Bloom row is `bits / 64` words over the values of one set that an ad includes (or the
// reserved element when it has no include list). A Bloom query is the 64-bit xxh3 hash of one
// value: bit i of the value is bits 16*i.. of the hash, modulo `bits`, a power of two.
#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#define GRACE_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define GRACE_HOST_DEVICE inline
#endif

// A matcher gives each child entry the ids of its table rows: one, or one per partition.
// index/matchers/node_matchers.py describes how they are stored.
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

struct BloomShape {
  uint32_t bits;    // a power of two, 64..65536
  uint32_t hashes;  // 1..4
};

// Every bit of the user's row is allowed: (row & user) == user.
GRACE_HOST_DEVICE bool contains_all(const uint64_t* row, const uint64_t* user, int32_t words) {
  for (int32_t w = 0; w < words; ++w) {
    if ((row[w] & user[w]) != user[w]) return false;
  }
  return true;
}

GRACE_HOST_DEVICE uint32_t bloom_bit(uint64_t hash, uint32_t i, BloomShape shape) {
  return static_cast<uint32_t>(hash >> (16 * i)) & (shape.bits - 1);
}

// The row may hold the value with this hash.
GRACE_HOST_DEVICE bool bloom_contains(const uint64_t* row, uint64_t hash, BloomShape shape) {
  for (uint32_t i = 0; i < shape.hashes; ++i) {
    const uint32_t bit = bloom_bit(hash, i, shape);
    if (((row[bit >> 6] >> (bit & 63)) & 1) == 0) return false;
  }
  return true;
}

// The row may hold one of the user's values. `star` is the row's stored answer for the reserved
// element, which every user has.
GRACE_HOST_DEVICE bool contains_any(const uint64_t* row, bool star, const uint64_t* queries,
                                    int64_t count, BloomShape shape) {
  if (star) return true;
  for (int64_t q = 0; q < count; ++q) {
    if (bloom_contains(row, queries[q], shape)) return true;
  }
  return false;
}

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

// Returns whether one row of the entry's bitmask matcher allows all values that the user has.
GRACE_HOST_DEVICE bool entry_contains_all(const GraceMatcherIds& matcher, const uint64_t* table,
                                          int64_t entry, const uint64_t* user, int32_t words) {
  const IdRange ids = ids_of(matcher, entry);
  for (int64_t i = ids.begin; i < ids.end; ++i) {
    if (contains_all(table + int64_t{matcher.ids[i]} * words, user, words)) return true;
  }
  return false;
}

// Returns whether one row of the entry's Bloom matcher may hold one of the user's values.
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
