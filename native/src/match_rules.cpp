// Exact matching of rules, in blocks: each step reads, for all rules of the block, what the step
// before has prefetched, and prefetches what the next step reads.
#include <algorithm>

#include "grace/expand.h"
#include "grace/match.h"

namespace grace::exact {

namespace {

constexpr int32_t kBlock = 64;  // their lines fit the L1 cache

bool any_in(const int32_t* begin, const int32_t* end, const uint64_t* user_values) {
  return std::any_of(begin, end, [&](int32_t value) {
    return ((user_values[value >> 6] >> (value & 63)) & 1) != 0;
  });
}

class RuleMatcher {
 public:
  RuleMatcher(const Ads& ads, const Request& request, const Scratch& scratch)
      : ads_(ads), request_(request), scratch_(scratch) {}

  void match_block(const int32_t* rules, int32_t count, int32_t* verdicts) {
    match_attributes(rules, count, verdicts);
    for (size_t s = 0; s < ads_.sets.size(); ++s) match_set(s, rules, verdicts);
    for (int32_t i = 0; i < live_; ++i) verdicts[alive_[i]] = kPasses;
  }

 private:
  struct Lists {
    const int32_t* include_begin;
    const int32_t* include_end;
    const int32_t* exclude_begin;
    const int32_t* exclude_end;
  };

  void match_attributes(const int32_t* rules, int32_t count, int32_t* verdicts) {
    const auto num_sets = static_cast<int64_t>(ads_.sets.size());
    for (int32_t i = 0; i < count; ++i) {
      prefetch(ads_.rule_bitmask + rules[i]);
      prefetch(ads_.rule_sets + rules[i] * num_sets);
    }
    for (int32_t i = 0; i < count; ++i) {
      rows_[i] = ads_.bitmask_table + int64_t{ads_.rule_bitmask[rules[i]]} * ads_.words;
      prefetch(rows_[i]);
      prefetch(rows_[i] + ads_.words - 1);
    }
    live_ = 0;
    for (int32_t i = 0; i < count; ++i) {
      verdicts[i] = kAttributes;
      alive_[live_] = i;
      live_ += contains_all(rows_[i], request_.user, ads_.words) ? 1 : 0;
    }
  }

  void match_set(size_t s, const int32_t* rules, int32_t* verdicts) {
    const SetRules& set = ads_.sets[s];
    const bool excludes = set.exclude_offsets[set.num_rules] != 0;
    for (int32_t i = 0; i < live_; ++i) {
      const size_t rule = static_cast<size_t>(rules[alive_[i]]);
      set_rules_[i] = ads_.rule_sets[rule * ads_.sets.size() + s];
      prefetch(set.include_offsets + set_rules_[i]);
      if (excludes) prefetch(set.exclude_offsets + set_rules_[i]);
    }
    for (int32_t i = 0; i < live_; ++i) {
      const int64_t* include = set.include_offsets + set_rules_[i];
      const int64_t* exclude = set.exclude_offsets + (excludes ? set_rules_[i] : 0);
      lists_[i] = {set.include_values + include[0], set.include_values + include[1],
                   set.exclude_values + exclude[0],
                   set.exclude_values + (excludes ? exclude[1] : exclude[0])};
      prefetch_list(lists_[i].include_begin, lists_[i].include_end);
      prefetch_list(lists_[i].exclude_begin, lists_[i].exclude_end);
    }
    int32_t still = 0;
    for (int32_t i = 0; i < live_; ++i) {
      verdicts[alive_[i]] = kFirstSet + static_cast<int32_t>(s);
      alive_[still] = alive_[i];
      still += set_passes(s, lists_[i]) ? 1 : 0;
    }
    live_ = still;
  }

  // What it means to pass a set: one of the included values, and none of the excluded ones.
  bool set_passes(size_t s, const Lists& lists) const {
    const UserSet& user = request_.sets[s];
    const uint64_t* values = scratch_.user_values[s].data();
    if (lists.include_begin != lists.include_end &&
        (user.count == 0 || !any_in(lists.include_begin, lists.include_end, values))) {
      return false;
    }
    if (lists.exclude_begin == lists.exclude_end) return true;
    if (!user.present) return ads_.sets[s].missing_passes_exclude;
    return user.count == 0 || !any_in(lists.exclude_begin, lists.exclude_end, values);
  }

  static void prefetch_list(const int32_t* begin, const int32_t* end) {
    constexpr int64_t line = kLineBytes / sizeof(int32_t);
    for (; begin < end; begin += std::min<int64_t>(line, end - begin)) prefetch(begin);
  }

  const Ads& ads_;
  const Request& request_;
  const Scratch& scratch_;
  int32_t live_ = 0;
  int32_t alive_[kBlock];  // the rules that passed so far, by their place in the block
  int32_t set_rules_[kBlock];
  const uint64_t* rows_[kBlock];
  Lists lists_[kBlock];
};

void mark_user_values(const Ads& ads, const Request& request, Scratch& scratch) {
  scratch.user_values.resize(ads.sets.size());
  for (size_t s = 0; s < ads.sets.size(); ++s) {
    const UserSet& user = request.sets[s];
    std::vector<uint64_t>& bits = scratch.user_values[s];
    bits.resize((ads.sets[s].num_values + 63) / 64);
    for (int64_t i = 0; i < user.count; ++i) {
      bits[user.ids[i] >> 6] |= uint64_t{1} << (user.ids[i] & 63);
    }
  }
}

void unmark_user_values(const Ads& ads, const Request& request, Scratch& scratch) {
  for (size_t s = 0; s < ads.sets.size(); ++s) {
    const UserSet& user = request.sets[s];
    for (int64_t i = 0; i < user.count; ++i) {
      scratch.user_values[s][user.ids[i] >> 6] = 0;
    }
  }
}

}  // namespace

void match_rules(const Ads& ads, const Request& request, Scratch& scratch) {
  const std::vector<int32_t>& rules = scratch.rules.keys();
  scratch.verdicts.resize(rules.size());
  mark_user_values(ads, request, scratch);
  RuleMatcher matcher(ads, request, scratch);
  for (size_t begin = 0; begin < rules.size(); begin += kBlock) {
    const auto count = static_cast<int32_t>(std::min<size_t>(kBlock, rules.size() - begin));
    matcher.match_block(rules.data() + begin, count, scratch.verdicts.data() + begin);
  }
  unmark_user_values(ads, request, scratch);
}

}  // namespace grace::exact
