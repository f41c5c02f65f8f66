// The lists of mode `exact`: the distinct rules of each leaf, and the set rules that name each
// value. No result depends on `threads`.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "grace/abi.h"
#include "grace/parallel.h"

namespace {

using grace::chunk_of;
using grace::parallel_tasks;

constexpr int64_t kChunksPerThread = 8;
constexpr int64_t kLeavesPerChunk = 1 << 12;

}  // namespace

// Writes the distinct rules of each leaf, ascending, and how many there are in all.
//   ad_offsets [leaves + 1], ad_rule [ads]      the ads of leaf i: ad_offsets[i] .. [i + 1]
//   rule_offsets [leaves + 1], rules [ads]      of `rules`, the first `total` numbers are used
GRACE_API int32_t grace_leaf_rules(int64_t leaves, const int64_t* ad_offsets,
                                   const int32_t* ad_rule, int32_t threads, int32_t* rule_offsets,
                                   int32_t* rules, int64_t* total) {
  return grace::guarded([&] {
    const int64_t wanted = std::max(threads, 1) * kChunksPerThread;
    const int64_t chunks = std::max<int64_t>(1, std::min(wanted, leaves / kLeavesPerChunk));
    // Each chunk puts its rules where its ads begin; no leaf has more rules than ads.
    std::vector<int64_t> sizes(chunks);
    parallel_tasks(chunks, threads, [&](int64_t c) {
      const auto [begin, end] = chunk_of(leaves, chunks, c);
      int32_t* at = rules + ad_offsets[begin];
      for (int64_t leaf = begin; leaf < end; ++leaf) {
        const int64_t ads = ad_offsets[leaf + 1] - ad_offsets[leaf];
        std::copy_n(ad_rule + ad_offsets[leaf], ads, at);
        std::sort(at, at + ads);
        int32_t* last = std::unique(at, at + ads);
        rule_offsets[leaf + 1] = static_cast<int32_t>(last - at);
        at = last;
      }
      sizes[c] = at - (rules + ad_offsets[begin]);
    });
    rule_offsets[0] = 0;
    for (int64_t leaf = 0; leaf < leaves; ++leaf) rule_offsets[leaf + 1] += rule_offsets[leaf];
    *total = 0;
    for (int64_t c = 0; c < chunks; ++c) {
      const int32_t* from = rules + ad_offsets[chunk_of(leaves, chunks, c).begin];
      std::memmove(rules + *total, from, sizes[c] * sizeof(int32_t));
      *total += sizes[c];
    }
  });
}

// Turns the values of set rules around: writes the rules that name each value, ascending.
//   offsets [rules + 1], values [...]           the values of rule i, all in [0, num_values)
//   posting_offsets [num_values + 1], postings [as many as values]
GRACE_API int32_t grace_postings(int64_t rules, const int64_t* offsets, const int32_t* values,
                                 int64_t num_values, int32_t threads, int64_t* posting_offsets,
                                 int32_t* postings) {
  return grace::guarded([&] {
    const int64_t entries = offsets[rules];
    // Every chunk counts all values: no more chunks than keep the counts below the entries' size.
    const int64_t affordable = entries / std::max<int64_t>(num_values, 1);
    const int64_t chunks = std::clamp<int64_t>(affordable, 1, std::max(threads, 1));
    const std::vector<int64_t> begins = grace::counting_sort(
        chunks, num_values, threads, postings, [&](int64_t c, const auto& take) {
          const auto [begin, end] = chunk_of(rules, chunks, c);
          for (int64_t rule = begin; rule < end; ++rule) {
            for (int64_t i = offsets[rule]; i < offsets[rule + 1]; ++i) {
              grace::require(values[i] >= 0 && values[i] < num_values,
                             "postings: a value out of range");
              take(values[i], static_cast<int32_t>(rule));
            }
          }
        });
    std::copy(begins.begin(), begins.end(), posting_offsets);
  });
}
