// Expand and exactly match. At catalogue size nearly every look-up misses the caches, so a request
// goes through passes, each over a plain list and each asking early for what its next steps read:
// leaves -> the rules of their ads -> verdicts on distinct rules -> ads that passed -> the reply.
// A rule is matched once per request, however many ads share it.
#include "grace/expand.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>

namespace grace::exact {

namespace {

void check_leaves(const Ads& ads, const Request& request, Scratch& scratch) {
  const auto refuse = [&](int64_t i, const std::string& fault) {
    throw std::invalid_argument("request " + std::to_string(request.number) + ", leaf " +
                                std::to_string(request.leaves[i]) + " at " + std::to_string(i) +
                                ": " + fault);
  };
  scratch.distinct.reset(request.num_leaves);
  for (int64_t i = 0; i < request.num_leaves; ++i) {
    const int32_t leaf = request.leaves[i];
    if (leaf == kNoLeaf) continue;
    if (leaf < 0 || leaf >= ads.num_leaves) {
      refuse(i, "not one of 0 to " + std::to_string(ads.num_leaves - 1));
    }
    if (std::isnan(request.scores[i])) refuse(i, "its score is not a number");
    if (!scratch.distinct.insert(leaf)) refuse(i, "named a second time");
  }
}

// The live leaves, best first, and where their ads are. Returns the number of ads.
int64_t find_ads(const Ads& ads, const Request& request, Scratch& scratch) {
  std::vector<LeafAds>& leaves = scratch.leaves;
  leaves.resize(request.num_leaves);
  size_t live = 0;
  int64_t generated = 0;
  for (int64_t i = 0; i < request.num_leaves; ++i) {
    if (i + kAhead < request.num_leaves) {
      prefetch(ads.offsets + std::max(request.leaves[i + kAhead], 0));
    }
    const int32_t leaf = request.leaves[i];
    if (leaf == kNoLeaf) continue;
    const int64_t first = ads.offsets[leaf];
    const int64_t count = ads.offsets[leaf + 1] - first;
    leaves[live++] = {request.scores[i], static_cast<int32_t>(i), static_cast<int32_t>(first),
                      static_cast<int32_t>(count)};
    generated += count;
  }
  leaves.resize(live);
  const auto better = [](const LeafAds& a, const LeafAds& b) {
    return a.score != b.score ? a.score > b.score : a.position < b.position;
  };
  // Beam search sends them sorted.
  if (!std::is_sorted(leaves.begin(), leaves.end(), better)) {
    std::sort(leaves.begin(), leaves.end(), better);
  }
  return generated;
}

void number_rules(const Ads& ads, int64_t generated, Scratch& scratch) {
  const std::vector<LeafAds>& leaves = scratch.leaves;
  scratch.rules.reset(std::min(generated, ads.num_rules + ads.num_alternatives));
  scratch.rule_numbers.resize(generated);
  int32_t* out = scratch.rule_numbers.data();
  for (size_t i = 0; i < leaves.size(); ++i) {
    if (i + kAhead < leaves.size()) prefetch(ads.rule + leaves[i + kAhead].first);
    const int32_t* rules = ads.rule + leaves[i].first;
    for (int32_t a = 0; a < leaves[i].count; ++a) *out++ = scratch.rules.number_of(rules[a]);
  }
}

// Exact matching of a block of rules: component by component, the rules of which a row fails drop
// out.
void match_block(const Ads& ads, const Request& request, const Scratch& scratch,
                 const int32_t* rules, int32_t count, int32_t* verdicts) {
  int32_t alive[kBlock];  // the rules that passed so far, by their place in the block
  int32_t rows[kBlock];
  bool passes[kBlock];
  for (int32_t i = 0; i < count; ++i) alive[i] = i;
  const auto width = static_cast<int64_t>(ads.components.size());
  for (int32_t i = 0; i < count; ++i) {
    prefetch(ads.rows + rules[i] * width);
    prefetch(ads.rows + rules[i] * width + width - 1);
  }
  int32_t live = count;
  for (int64_t c = 0; c < width; ++c) {
    for (int32_t i = 0; i < live; ++i) rows[i] = ads.rows[rules[alive[i]] * width + c];
    ads.components[c]->test(request.asked[c], request.number, scratch.marks[c], rows, live, passes);
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

// Joins the verdicts on the plain rules: an alternative passes if one of its rules does, and else
// fails by the last component that fails one of them.
void join_alternatives(const Ads& ads, Scratch& scratch) {
  std::vector<int32_t>& verdicts = scratch.verdicts;
  const std::vector<int32_t>& rules = scratch.rules.keys();
  const int32_t* of_rule = verdicts.data();  // never before the place that is written
  for (size_t i = 0; i < rules.size(); ++i) {
    const int64_t alternative = rules[i] - ads.num_rules;
    const int64_t count = alternative < 0 ? 1
                                          : ads.alternative_offsets[alternative + 1] -
                                                ads.alternative_offsets[alternative];
    const bool passes = std::find(of_rule, of_rule + count, kPasses) != of_rule + count;
    verdicts[i] = passes ? kPasses : *std::max_element(of_rule, of_rule + count);
    of_rule += count;
  }
}

// Writes into `scratch.verdicts` which rules and alternatives of `scratch.rules` the request's user
// passes.
void match_rules(const Ads& ads, const Request& request, Scratch& scratch) {
  std::vector<int32_t>& rules = scratch.plain;
  rules.clear();
  for (const int32_t rule : scratch.rules.keys()) {
    const int64_t alternative = rule - ads.num_rules;
    if (alternative < 0) {
      rules.push_back(rule);
    } else {
      const int64_t* own = ads.alternative_offsets + alternative;
      rules.insert(rules.end(), ads.alternatives + own[0], ads.alternatives + own[1]);
    }
  }
  scratch.verdicts.resize(rules.size());
  scratch.marks.resize(ads.components.size());
  for (size_t c = 0; c < ads.components.size(); ++c) {
    ads.components[c]->mark(request.asked[c], request.number, scratch.marks[c]);
  }
  for (size_t begin = 0; begin < rules.size(); begin += kBlock) {
    const auto count = static_cast<int32_t>(std::min<size_t>(kBlock, rules.size() - begin));
    match_block(ads, request, scratch, rules.data() + begin, count,
                scratch.verdicts.data() + begin);
  }
  for (size_t c = 0; c < ads.components.size(); ++c) {
    ads.components[c]->unmark(request.asked[c], request.number, scratch.marks[c]);
  }
  if (rules.size() > scratch.rules.keys().size()) join_alternatives(ads, scratch);
}

// The ads whose rule passed, in the order of the leaves. Which pass is hard to foretell, so nothing
// here branches on it.
void collect_matches(Scratch& scratch, Counts& counts) {
  std::vector<int64_t> by_verdict(kFails + scratch.marks.size());
  scratch.matches.resize(scratch.rule_numbers.size() + 1);
  Match* out = scratch.matches.data();
  const int32_t* number = scratch.rule_numbers.data();
  for (const LeafAds& leaf : scratch.leaves) {
    const Match* const before = out;
    for (int32_t a = 0; a < leaf.count; ++a) {
      const int32_t verdict = scratch.verdicts[*number++];
      ++by_verdict[verdict];
      *out = {leaf.score, leaf.position, leaf.first + a};
      out += verdict == kPasses ? 1 : 0;
    }
    counts.wasted += out == before ? 1 : 0;
  }
  scratch.matches.resize(out - scratch.matches.data());
  counts.failed.assign(by_verdict.begin() + kFails, by_verdict.end());
}

// Drops the matches at those places; returns how many.
template <typename Drop>
int64_t drop_matches(std::vector<Match>& matches, Drop&& drop) {
  size_t kept = 0;
  for (size_t i = 0; i < matches.size(); ++i) {
    matches[kept] = matches[i];  // no branch: a processor cannot predict which are dropped
    kept += drop(i) ? 0 : 1;
  }
  const size_t dropped = matches.size() - kept;
  matches.resize(kept);
  return static_cast<int64_t>(dropped);
}

int64_t drop_stopped(const Request& request, std::vector<Match>& matches) {
  if (request.stopped == nullptr) return 0;
  return drop_matches(matches, [&](size_t i) {
    if (i + kAhead < matches.size()) prefetch(request.stopped + (matches[i + kAhead].ordinal >> 6));
    const int32_t ordinal = matches[i].ordinal;
    return ((read_live(request.stopped + (ordinal >> 6)) >> (ordinal & 63)) & 1) != 0;
  });
}

// Drops the matches whose ad has one of these ids in `of_ad`, by ordinal.
template <typename Id>
int64_t drop_excluded(const Id* of_ad, const Id* ids, int64_t count, IdSet<Id>& excluded,
                      std::vector<Match>& matches) {
  if (count == 0) return 0;
  excluded.reset(count);
  for (int64_t i = 0; i < count; ++i) excluded.insert(ids[i]);
  return drop_matches(matches, [&](size_t i) {
    if (i + kAhead < matches.size()) prefetch(of_ad + matches[i + kAhead].ordinal);
    const Id id = of_ad[matches[i].ordinal];
    return id != kNoEntity && excluded.contains(id);
  });
}

int64_t drop_excluded_entities(const Ads& ads, const Request& request, Scratch& scratch) {
  int64_t dropped = 0;
  for (size_t kind = 0; request.entity_offsets != nullptr && kind < ads.entities.size(); ++kind) {
    const int64_t begin = request.entity_offsets[kind], end = request.entity_offsets[kind + 1];
    dropped += drop_excluded(ads.entities[kind].of_ad, request.entity_places + begin, end - begin,
                             scratch.excluded, scratch.matches);
  }
  return dropped;
}

// Inlined, the address of a thread's own memory would be computed again in every loop, which takes
// a third of the time of a match.
__attribute__((noinline)) Scratch& scratch_of_thread() {
  thread_local Scratch scratch;
  return scratch;
}

}  // namespace

Reply Matcher::match(const Request& request) const {
  Scratch& scratch = scratch_of_thread();
  try {
    Reply reply;
    check_leaves(ads, request, scratch);
    reply.counts.generated = find_ads(ads, request, scratch);
    reply.counts.leaves = static_cast<int64_t>(scratch.leaves.size());
    number_rules(ads, reply.counts.generated, scratch);
    match_rules(ads, request, scratch);
    collect_matches(scratch, reply.counts);
    reply.counts.stopped = drop_stopped(request, scratch.matches);
    reply.counts.excluded = drop_excluded(ads.ids, request.excluded_ads, request.num_excluded_ads,
                                          scratch.excluded_ads, scratch.matches);
    reply.counts.excluded += drop_excluded_entities(ads, request, scratch);
    reply.counts.matched = static_cast<int64_t>(scratch.matches.size());
    write_reply(ads, request, scratch, reply);
    reply.scores.resize(reply.positions.size());
    std::transform(reply.positions.begin(), reply.positions.end(), reply.scores.begin(),
                   [&](int32_t position) { return request.scores[position]; });
    return reply;
  } catch (...) {
    scratch = Scratch();  // it may be in the middle of a request
    throw;
  }
}

namespace {

using Replies = std::vector<Reply>;

void require_entities(const Ads& ads, int64_t requests, const int64_t* offsets,
                      const int32_t* places) {
  if (offsets == nullptr) return;
  const auto kinds = static_cast<int64_t>(ads.entities.size());
  require_offsets(offsets, requests * kinds, "exact_match: entity_offsets descend");
  for (int64_t i = 0; i < requests * kinds; ++i) {
    const int64_t count = ads.entities[i % kinds].count;
    require(std::all_of(places + offsets[i], places + offsets[i + 1],
                        [&](int32_t place) { return place >= 0 && place < count; }),
            "exact_match: an excluded entity's place is out of range");
  }
}

}  // namespace

void add_component(uint64_t handle, std::unique_ptr<const Component> component) {
  reinterpret_cast<Matcher*>(handle)->ads.components.push_back(std::move(component));
}

// The arrays must outlive the handle. `threads` counts the caller's thread, too. Each form of
// component has a function that adds one, in the schema's order, before the first match.
GRACE_API int32_t grace_exact_open(int32_t threads, int64_t leaves, const int64_t* ad_offsets,
                                   int64_t ads, const int64_t* ad_ids, const int32_t* ad_rule,
                                   const float* ad_weight, int64_t rules, const int32_t* rule_rows,
                                   int64_t alternatives, const int64_t* alternative_offsets,
                                   const int32_t* alternative_rules, uint64_t* handle) {
  return guarded([&] {
    require(ads <= INT32_MAX, "exact_open: more ads than int32 ordinals can number");
    require(ad_offsets[leaves] == ads, "exact_open: ad_offsets do not end at the last ad");
    Ads all{leaves,  ads,       rules,     alternatives,        ad_offsets,        ad_ids,
            ad_rule, ad_weight, rule_rows, alternative_offsets, alternative_rules, {},
            {}};
    *handle = reinterpret_cast<uint64_t>(new Matcher(std::move(all), threads));
  });
}

// Add the entities in the schema's order, before the first match.   of_ad int32 [ads]
GRACE_API int32_t grace_exact_add_entities(uint64_t handle, int64_t count, const int32_t* of_ad) {
  return guarded(
      [&] { reinterpret_cast<Matcher*>(handle)->ads.entities.push_back({count, of_ad}); });
}

GRACE_API int32_t grace_exact_close(uint64_t handle) {
  return guarded([&] { delete reinterpret_cast<Matcher*>(handle); });
}

// Matches all requests. grace_replies_take copies the ads, and grace_replies_drop frees the handle.
//   asked          of each component, in the words of its form
//   stopped        uint64 [ceil(ads / 64)], or null
//   weight         float32 [ads] instead of the snapshot's, or null
//   entity_offsets int64 [requests * kinds + 1], or null: excluded entities by request and kind
//   at_most        int64 [requests, kinds], or null: a limit or kNoLimit
//   reply_offsets  int64 [requests + 1]
//   counts         int64 [requests, 7 + components]: live leaves, those of which no ad passed its
//                  rule, generated, stopped, excluded, matched, limited, failed by component
GRACE_API int32_t grace_exact_match(uint64_t handle, int64_t requests, const int64_t* leaf_offsets,
                                    const int32_t* leaves, const float* scores,
                                    const void* const* asked, const uint64_t* stopped,
                                    const float* weight, const int64_t* ad_offsets,
                                    const int64_t* excluded_ads, const int64_t* entity_offsets,
                                    const int32_t* entity_places, const int64_t* at_most,
                                    const int64_t* max_ads, int64_t* reply_offsets, int64_t* counts,
                                    uint64_t* replies_handle) {
  return guarded([&] {
    Matcher& matcher = *reinterpret_cast<Matcher*>(handle);
    const Ads& ads = matcher.ads;
    require_offsets(leaf_offsets, requests, "exact_match: leaf_offsets descend");
    require_offsets(ad_offsets, requests, "exact_match: ad_offsets descend");
    const auto kinds = static_cast<int64_t>(ads.entities.size());
    require_entities(ads, requests, entity_offsets, entity_places);
    for (size_t c = 0; c < ads.components.size(); ++c) {
      ads.components[c]->require_valid(asked[c], requests);
    }
    auto replies = std::make_unique<Replies>(requests);
    matcher.workers.run(requests, [&](int64_t b) {
      const int64_t first = leaf_offsets[b];
      require(max_ads[b] >= 0, "exact_match: max_ads is negative");
      (*replies)[b] = matcher.match(
          {leaves + first, scores + first, leaf_offsets[b + 1] - first, asked, b, stopped,
           weight == nullptr ? ads.weight : weight, excluded_ads + ad_offsets[b],
           ad_offsets[b + 1] - ad_offsets[b],
           entity_offsets == nullptr ? nullptr : entity_offsets + b * kinds, entity_places,
           at_most == nullptr ? nullptr : at_most + b * kinds, max_ads[b]});
    });
    reply_offsets[0] = 0;
    for (int64_t b = 0; b < requests; ++b) {
      const Reply& reply = (*replies)[b];
      reply_offsets[b + 1] = reply_offsets[b] + static_cast<int64_t>(reply.ad_ids.size());
      const Counts& of = reply.counts;
      for (const int64_t count :
           {of.leaves, of.wasted, of.generated, of.stopped, of.excluded, of.matched, of.limited}) {
        *counts++ = count;
      }
      counts = std::copy(of.failed.begin(), of.failed.end(), counts);
    }
    *replies_handle = reinterpret_cast<uint64_t>(replies.release());
  });
}

// Each array is [reply_offsets[requests]], one request after another.
GRACE_API int32_t grace_replies_take(uint64_t replies_handle, int64_t* ad_ids, float* scores,
                                     int32_t* positions) {
  return guarded([&] {
    for (const Reply& reply : *reinterpret_cast<const Replies*>(replies_handle)) {
      ad_ids = std::copy(reply.ad_ids.begin(), reply.ad_ids.end(), ad_ids);
      scores = std::copy(reply.scores.begin(), reply.scores.end(), scores);
      positions = std::copy(reply.positions.begin(), reply.positions.end(), positions);
    }
  });
}

GRACE_API int32_t grace_replies_drop(uint64_t replies_handle) {
  return guarded([&] { delete reinterpret_cast<Replies*>(replies_handle); });
}

}  // namespace grace::exact
