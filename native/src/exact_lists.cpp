// The lists of mode `exact`: the distinct rules of each leaf, and the set rules that name each
// value. No result depends on `threads`.
#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>
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
//   alternative_offsets [alternatives + 1], alternative_rules [...]   rule `num_rules` + i of an ad
//   rule_offsets [leaves + 1], rules [those of all ads]   the first `total` numbers are used
GRACE_API int32_t grace_leaf_rules(int64_t leaves, const int64_t* ad_offsets,
                                   const int32_t* ad_rule, int64_t num_rules, int64_t alternatives,
                                   const int64_t* alternative_offsets,
                                   const int32_t* alternative_rules, int32_t threads,
                                   int32_t* rule_offsets, int32_t* rules, int64_t* total) {
  return grace::guarded([&] {
    const auto rules_of = [&](int64_t ad) {
      const int64_t i = ad_rule[ad] - num_rules;
      if (i < 0) return std::pair(ad_rule + ad, ad_rule + ad + 1);
      return std::pair(alternative_rules + alternative_offsets[i],
                       alternative_rules + alternative_offsets[i + 1]);
    };
    const int64_t wanted = std::max(threads, 1) * kChunksPerThread;
    const int64_t chunks = std::max<int64_t>(1, std::min(wanted, leaves / kLeavesPerChunk));
    // Each chunk has room for the rules of all of its ads.
    std::vector<int64_t> begins(chunks + 1), sizes(chunks);
    parallel_tasks(chunks, threads, [&](int64_t c) {
      const auto [begin, end] = chunk_of(leaves, chunks, c);
      begins[c + 1] = ad_offsets[end] - ad_offsets[begin];
      if (alternatives == 0) return;
      for (int64_t ad = ad_offsets[begin]; ad < ad_offsets[end]; ++ad) {
        const auto [first, last] = rules_of(ad);
        begins[c + 1] += last - first - 1;
      }
    });
    std::partial_sum(begins.begin(), begins.end(), begins.begin());
    parallel_tasks(chunks, threads, [&](int64_t c) {
      const auto [begin, end] = chunk_of(leaves, chunks, c);
      int32_t* at = rules + begins[c];
      for (int64_t leaf = begin; leaf < end; ++leaf) {
        int32_t* last = at;
        for (int64_t ad = ad_offsets[leaf]; ad < ad_offsets[leaf + 1]; ++ad) {
          const auto [first, after] = rules_of(ad);
          last = std::copy(first, after, last);
        }
        std::sort(at, last);
        last = std::unique(at, last);
        rule_offsets[leaf + 1] = static_cast<int32_t>(last - at);
        at = last;
      }
      sizes[c] = at - (rules + begins[c]);
    });
    rule_offsets[0] = 0;
    for (int64_t leaf = 0; leaf < leaves; ++leaf) rule_offsets[leaf + 1] += rule_offsets[leaf];
    *total = 0;
    for (int64_t c = 0; c < chunks; ++c) {
      std::memmove(rules + *total, rules + begins[c], sizes[c] * sizeof(int32_t));
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
