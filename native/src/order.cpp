// Orders ads by id and by SID: stable counting sorts over digits, all cores, linear in the ads.
#include <cstdint>
#include <vector>

#include "grace/abi.h"
#include "grace/parallel.h"

namespace {

using grace::chunk_of;
using grace::parallel_tasks;

constexpr int kIdDigitBits = 11;

// One stable pass: `to` holds the rows of `from`, ascending by digit(row) in [0, buckets).
template <typename Digit>
void counting_pass(int64_t count, int64_t buckets, int32_t threads, const int32_t* from,
                   int32_t* to, const Digit& digit) {
  const int64_t chunks = std::max(threads, 1);
  std::vector<std::vector<int64_t>> next(chunks);
  parallel_tasks(chunks, threads, [&](int64_t c) {
    next[c].assign(buckets, 0);
    const auto [begin, end] = chunk_of(count, chunks, c);
    for (int64_t i = begin; i < end; ++i) ++next[c][digit(from[i])];
  });
  int64_t at = 0;
  for (int64_t bucket = 0; bucket < buckets; ++bucket) {
    for (int64_t c = 0; c < chunks; ++c) {
      const int64_t size = next[c][bucket];
      next[c][bucket] = at;
      at += size;
    }
  }
  parallel_tasks(chunks, threads, [&](int64_t c) {
    const auto [begin, end] = chunk_of(count, chunks, c);
    for (int64_t i = begin; i < end; ++i) to[next[c][digit(from[i])]++] = from[i];
  });
}

}  // namespace

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
      counting_pass(count, 1 << kIdDigitBits, threads, order, spare.data(),
                    [&](int32_t row) { return (ids[row] >> shift) & ((1 << kIdDigitBits) - 1); });
      std::copy(spare.begin(), spare.end(), order);
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
      counting_pass(count, largest + 1, threads, order, spare.data(),
                    [&](int32_t row) { return tokens[int64_t{row} * length + t]; });
      std::copy(spare.begin(), spare.end(), order);
    }
  });
}
