// The lists of mode `exact`: the distinct rules of each leaf, the set rules that name each value, and
// which rules of which leaves live while ads are stopped. Results do not depend on `threads`.
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

bool is_stopped(const uint64_t* stopped, int64_t ordinal) {
  return stopped != nullptr && ((stopped[ordinal >> 6] >> (ordinal & 63)) & 1) != 0;
}

// Returns the leaf of an ordinal that is in leaf `from` or after it: doubling steps, then halves.
int64_t leaf_of(const int64_t* ad_offsets, int64_t leaves, int64_t from, int64_t ordinal) {
  int64_t step = 1;
  while (from + step < leaves && ad_offsets[from + step] <= ordinal) {
    from += step;
    step *= 2;
  }
  const int64_t* end = ad_offsets + std::min(from + step, leaves);
  return std::upper_bound(ad_offsets + from, end, ordinal) - ad_offsets - 1;
}

struct Leaves {
  int64_t count;
  const int64_t* ad_offsets;
  const int32_t* ad_rule;
  const int32_t* rule_offsets;
  const int32_t* rules;

  // Returns where `rules` holds the rule of an ad of a leaf.
  int64_t pair_of(int64_t leaf, int64_t ordinal) const {
    const int32_t* end = rules + rule_offsets[leaf + 1];
    const int32_t* found = std::lower_bound(rules + rule_offsets[leaf], end, ad_rule[ordinal]);
    grace::require(found != end && *found == ad_rule[ordinal], "live_pairs: a leaf lacks a rule");
    return found - rules;
  }
};

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
    std::vector<std::vector<int64_t>> next(chunks);
    parallel_tasks(chunks, threads, [&](int64_t c) {
      next[c].assign(num_values, 0);
      const auto [begin, end] = chunk_of(rules, chunks, c);
      for (int64_t i = offsets[begin]; i < offsets[end]; ++i) {
        grace::require(values[i] >= 0 && values[i] < num_values, "postings: a value out of range");
        ++next[c][values[i]];
      }
    });
    int64_t at = 0;
    for (int64_t value = 0; value < num_values; ++value) {
      posting_offsets[value] = at;
      for (int64_t c = 0; c < chunks; ++c) {
        const int64_t size = next[c][value];
        next[c][value] = at;
        at += size;
      }
    }
    posting_offsets[num_values] = at;
    parallel_tasks(chunks, threads, [&](int64_t c) {
      const auto [begin, end] = chunk_of(rules, chunks, c);
      for (int64_t rule = begin; rule < end; ++rule) {
        for (int64_t i = offsets[rule]; i < offsets[rule + 1]; ++i) {
          postings[next[c][values[i]]++] = static_cast<int32_t>(rule);
        }
      }
    });
  });
}

// For each pair of leaf and rule of some ads: writes its place in `rules`, ascending, and its rule, or
// num_rules if all its ads are stopped.
//   stopped    a bit per ad, or null: no ad is
//   ordinals   [count], the ads, ascending
//   positions, live [count]: the first `written` are used
GRACE_API int32_t grace_live_pairs(int64_t leaves, int64_t ads, const int64_t* ad_offsets,
                                   const int32_t* ad_rule, const int32_t* rule_offsets,
                                   const int32_t* rules, int32_t num_rules,
                                   const uint64_t* stopped, int64_t count, const int64_t* ordinals,
                                   int64_t* positions, int32_t* live, int64_t* written) {
  return grace::guarded([&] {
    const Leaves all{leaves, ad_offsets, ad_rule, rule_offsets, rules};
    std::vector<uint8_t> lives;  // of a leaf with several of these ads: by pair
    int64_t out = 0;
    int64_t leaf = 0;
    for (int64_t i = 0; i < count;) {
      grace::require(ordinals[i] >= 0 && ordinals[i] < ads, "live_pairs: an ordinal out of range");
      leaf = leaf_of(ad_offsets, all.count, leaf, ordinals[i]);
      const int64_t end = ad_offsets[leaf + 1];
      int64_t next = i + 1;
      while (next < count && ordinals[next] < end) {
        grace::require(ordinals[next] >= ordinals[next - 1], "live_pairs: ordinals must ascend");
        ++next;
      }
      const int64_t first_pair = rule_offsets[leaf];
      lives.assign(rule_offsets[leaf + 1] - first_pair, 0);
      if (next == i + 1) {
        const int64_t pair = all.pair_of(leaf, ordinals[i]);
        bool lives_on = false;
        for (int64_t ad = ad_offsets[leaf]; ad < end && !lives_on; ++ad) {
          lives_on = ad_rule[ad] == rules[pair] && !is_stopped(stopped, ad);
        }
        positions[out] = pair;
        live[out++] = lives_on ? rules[pair] : num_rules;
      } else {
        constexpr uint8_t kLives = 1;
        constexpr uint8_t kWanted = 2;
        for (int64_t ad = ad_offsets[leaf]; ad < end; ++ad) {
          if (!is_stopped(stopped, ad)) lives[all.pair_of(leaf, ad) - first_pair] |= kLives;
        }
        for (int64_t k = i; k < next; ++k) {
          lives[all.pair_of(leaf, ordinals[k]) - first_pair] |= kWanted;
        }
        for (int64_t pair = 0; pair < static_cast<int64_t>(lives.size()); ++pair) {
          if ((lives[pair] & kWanted) == 0) continue;
          positions[out] = first_pair + pair;
          live[out++] = (lives[pair] & kLives) != 0 ? rules[first_pair + pair] : num_rules;
        }
      }
      i = next;
    }
    *written = out;
  });
}
