// Exact matching of rules, in blocks: component by component, the rules of which a row fails drop
// out.
#include <algorithm>

#include "grace/expand.h"

namespace grace::exact {

namespace {

void match_block(const Ads& ads, const Request& request, const Scratch& scratch,
                 const int32_t* rules, int32_t count, int32_t* verdicts) {
  int32_t alive[kBlock];  // the rules that passed so far, by their place in the block
  int32_t rows[kBlock];
  bool passes[kBlock];
  for (int32_t i = 0; i < count; ++i) alive[i] = i;
  for (const Part& part : ads.parts) {
    for (int32_t i = 0; i < count; ++i) prefetch(part.ids + rules[i] * part.stride);
  }
  int32_t live = count;
  for (size_t c = 0; c < ads.parts.size(); ++c) {
    const Part& part = ads.parts[c];
    for (int32_t i = 0; i < live; ++i) rows[i] = part.ids[rules[alive[i]] * part.stride];
    part.component->test(request.asked[c], request.number, scratch.marks[c], rows, live, passes);
    int32_t still = 0;
    for (int32_t i = 0; i < live; ++i) {
      verdicts[alive[i]] = kFails + static_cast<int32_t>(c);
      alive[still] = alive[i];
      still += passes[i] ? 1 : 0;
    }
    live = still;
  }
  for (int32_t i = 0; i < live; ++i) verdicts[alive[i]] = kPasses;
}

}  // namespace

void match_rules(const Ads& ads, const Request& request, Scratch& scratch) {
  const std::vector<int32_t>& rules = scratch.rules.keys();
  scratch.verdicts.resize(rules.size());
  scratch.marks.resize(ads.parts.size());
  for (size_t c = 0; c < ads.parts.size(); ++c) {
    ads.parts[c].component->mark(request.asked[c], request.number, scratch.marks[c]);
  }
  for (size_t begin = 0; begin < rules.size(); begin += kBlock) {
    const auto count = static_cast<int32_t>(std::min<size_t>(kBlock, rules.size() - begin));
    match_block(ads, request, scratch, rules.data() + begin, count,
                scratch.verdicts.data() + begin);
  }
  for (size_t c = 0; c < ads.parts.size(); ++c) {
    ads.parts[c].component->unmark(request.asked[c], request.number, scratch.marks[c]);
  }
}

}  // namespace grace::exact
