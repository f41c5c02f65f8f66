// Orders ads by id and by SID: stable counting sorts over digits, all cores, linear in the ads.
#include <cstdint>
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
