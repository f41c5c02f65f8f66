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

}  // namespace grace
