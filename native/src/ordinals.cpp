// Ads by their ids and SIDs.
//
// Orders are stable counting sorts over digits: all cores, linear in the ads.
//
// Look-ups are binary searches over `ad_lookup`, whose ids are anywhere in memory. Each step of a
// search waits for memory, so a block of searches takes its steps together, and asks early for what
// the next step reads.
#include <algorithm>
#include <vector>

#include "grace/abi.h"
#include "grace/parallel.h"

namespace {

constexpr int kIdDigitBits = 11;

// One stable pass: reorders the rows by digit(row) in [0, buckets). `spare` has as many elements.
template <typename Digit>
void counting_pass(std::vector<int32_t>& spare, int64_t buckets, int32_t threads, int32_t* rows,
                   const Digit& digit) {
  const auto count = static_cast<int64_t>(spare.size());
  const int64_t chunks = std::max(threads, 1);
  grace::counting_sort(chunks, buckets, threads, spare.data(), [&](int64_t c, const auto& take) {
    const auto [begin, end] = grace::chunk_of(count, chunks, c);
    for (int64_t i = begin; i < end; ++i) take(digit(rows[i]), rows[i]);
  });
  std::copy(spare.begin(), spare.end(), rows);
}

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

// order int32 [count]: the rows in ascending order of ids int64 [count], none of them negative.
GRACE_API int32_t grace_order_by_id(int64_t count, const int64_t* ids, int32_t threads,
                                    int32_t* order) {
  return grace::guarded([&] {
    int64_t largest = 0;
    for (int64_t i = 0; i < count; ++i) {
      grace::require(ids[i] >= 0, "order_by_id: a negative id");
      largest = std::max(largest, ids[i]);
      order[i] = static_cast<int32_t>(i);
    }
    std::vector<int32_t> spare(count);
    for (int shift = 0; shift < 63 && (largest >> shift) != 0; shift += kIdDigitBits) {
      counting_pass(spare, 1 << kIdDigitBits, threads, order,
                    [&](int32_t row) { return (ids[row] >> shift) & ((1 << kIdDigitBits) - 1); });
    }
  });
}

// order int32 [count], on entry any order of the rows: stably reordered by tokens uint16 [count,
// length].
GRACE_API int32_t grace_order_by_sid(int64_t count, const uint16_t* tokens, int32_t length,
                                     int32_t threads, int32_t* order) {
  return grace::guarded([&] {
    std::vector<int32_t> spare(count);
    for (int32_t t = length - 1; t >= 0; --t) {
      uint16_t largest = 0;
      for (int64_t i = 0; i < count; ++i) largest = std::max(largest, tokens[i * length + t]);
      counting_pass(spare, largest + 1, threads, order,
                    [&](int32_t row) { return tokens[int64_t{row} * length + t]; });
    }
  });
}
