// The order of matched ads in a reply: by score, then weight, both descending, then id.
#pragma once

#include <algorithm>
#include <vector>

#include "grace/expand.h"

namespace grace::exact {

struct BetterAd {
  bool operator()(const Candidate& a, const Candidate& b) const {
    return a.weight != b.weight ? a.weight > b.weight : a.id < b.id;
  }
};

// Orders the matches of one score by weight and id. Each weight is read once: it must not change
// while they are sorted.
inline void order_tied(const Ads& ads, const float* weight, const std::vector<Match>& matches,
                       size_t begin, size_t end, std::vector<Candidate>& tied) {
  tied.clear();
  for (size_t i = begin; i < end; ++i) {
    const int32_t ordinal = matches[i].ordinal;
    tied.push_back({ads.ids[ordinal], read_live(weight + ordinal), static_cast<int32_t>(i)});
  }
  std::sort(tied.begin(), tied.end(), BetterAd());
}

// Finds the matches of one score from `begin` on, and asks early for the ads that come next.
struct TiedMatches {
  const Ads& ads;
  const float* weight;  // per ordinal
  const std::vector<Match>& matches;
  size_t asked = 0;

  size_t end_of(size_t begin) {
    size_t end = begin + 1;
    while (end < matches.size() && matches[end].score == matches[begin].score) ++end;
    for (; asked < std::min<size_t>(matches.size(), end + kAhead); ++asked) {
      prefetch(ads.ids + matches[asked].ordinal);
      prefetch(weight + matches[asked].ordinal);
    }
    return end;
  }
};

}  // namespace grace::exact
