// The C functions of grace/expand.h: a matcher by its handle, many requests per call, flat arrays.
#include <algorithm>
#include <memory>
#include <vector>

#include "grace/abi.h"
#include "grace/expand.h"

namespace {

using grace::exact::Ads;
using grace::exact::Counts;
using grace::exact::LeafFault;
using grace::exact::Matcher;
using grace::exact::Reply;
using grace::exact::Request;
using grace::exact::UserSet;

using Replies = std::vector<Reply>;

constexpr int64_t kFixedCounts = 6;

void require_offsets(const int64_t* offsets, int64_t count, const char* text) {
  grace::require(offsets[0] >= 0, text);
  for (int64_t i = 0; i < count; ++i) grace::require(offsets[i] <= offsets[i + 1], text);
}

// From set by set to request by request.
std::vector<UserSet> user_sets(const Ads& ads, int64_t requests, const uint8_t* present,
                               const int64_t* offsets, const int32_t* ids) {
  const auto num_sets = static_cast<int64_t>(ads.sets.size());
  require_offsets(offsets, num_sets * requests, "exact_match: value_offsets descend");
  std::vector<UserSet> users(static_cast<size_t>(num_sets * requests));
  for (int64_t s = 0; s < num_sets; ++s) {
    const int64_t num_values = ads.sets[static_cast<size_t>(s)].num_values;
    for (int64_t b = 0; b < requests; ++b) {
      const int64_t at = s * requests + b;
      const int32_t* begin = ids + offsets[at];
      const int32_t* end = ids + offsets[at + 1];
      grace::require(
          std::all_of(begin, end, [&](int32_t id) { return id >= 0 && id < num_values; }),
          "exact_match: a user's value id is out of range");
      users[static_cast<size_t>(b * num_sets + s)] = {begin, end - begin, present[at] != 0};
    }
  }
  return users;
}

void write_counts(const Counts& counts, int64_t* out) {
  for (int64_t count : {counts.leaves, counts.generated, counts.attributes, counts.paused,
                        counts.denied, counts.matched}) {
    *out++ = count;
  }
  std::copy(counts.sets.begin(), counts.sets.end(), out);
}

}  // namespace

// The arrays must outlive the handle. `threads` match a batch, the caller's among them. `rule_sets`
// is [rules, sets]; the sets follow.
GRACE_API int32_t grace_exact_open(int32_t threads, int64_t leaves, const int64_t* ad_offsets,
                                   int64_t ads, const int64_t* ad_ids, const int32_t* ad_rule,
                                   const float* ad_weight, int64_t rules,
                                   const int32_t* rule_bitmask, int32_t words,
                                   const uint64_t* bitmask_table, const int32_t* rule_sets,
                                   uint64_t* handle) {
  return grace::guarded([&] {
    grace::require(ads <= INT32_MAX, "exact_open: more ads than int32 ordinals can number");
    grace::require(ad_offsets[leaves] == ads, "exact_open: ad_offsets do not end at the last ad");
    auto matcher = std::make_unique<Matcher>(Ads{leaves,
                                                 ads,
                                                 rules,
                                                 words,
                                                 ad_offsets,
                                                 ad_ids,
                                                 ad_rule,
                                                 ad_weight,
                                                 rule_bitmask,
                                                 bitmask_table,
                                                 rule_sets,
                                                 {}},
                                             threads);
    *handle = reinterpret_cast<uint64_t>(matcher.release());
  });
}

// Sets come in the schema's order, before the first match.
GRACE_API int32_t grace_exact_add_set(uint64_t handle, int64_t set_rules, int64_t values,
                                      const int64_t* include_offsets, const int32_t* include_values,
                                      const int64_t* exclude_offsets, const int32_t* exclude_values,
                                      int32_t missing_passes_exclude) {
  return grace::guarded([&] {
    reinterpret_cast<Matcher*>(handle)->add_set({set_rules, values, include_offsets, include_values,
                                                 exclude_offsets, exclude_values,
                                                 missing_passes_exclude != 0});
  });
}

GRACE_API int32_t grace_exact_close(uint64_t handle) {
  return grace::guarded([&] { delete reinterpret_cast<Matcher*>(handle); });
}

// Answers all requests; grace_replies_take copies the ads, grace_replies_drop ends the handle.
//   bitmask        uint64 [requests, words]
//   present        uint8 [sets, requests]; value_offsets int64 [sets * requests + 1], set by set
//   paused         uint64 [ceil(ads / 64)], or null
//   reply_offsets  int64 [requests + 1]
//   counts         int64 [requests, 6 + sets]: live leaves, generated, attributes, paused, denied,
//                  matched, sets
//   fault          int64 [2]: the kind and position of a LeafFault, and then no handle; untouched
//                  if all is well
GRACE_API int32_t grace_exact_match(uint64_t handle, int64_t requests, const int64_t* leaf_offsets,
                                    const int32_t* leaves, const float* scores,
                                    const uint64_t* bitmask, const uint8_t* present,
                                    const int64_t* value_offsets, const int32_t* value_ids,
                                    const uint64_t* paused, const int64_t* deny_offsets,
                                    const int64_t* deny, const int64_t* max_ads,
                                    int64_t* reply_offsets, int64_t* counts, int64_t* fault,
                                    uint64_t* replies_handle) {
  return grace::guarded([&] {
    Matcher& matcher = *reinterpret_cast<Matcher*>(handle);
    const Ads& ads = matcher.ads();
    const auto num_sets = static_cast<int64_t>(ads.sets.size());
    require_offsets(leaf_offsets, requests, "exact_match: leaf_offsets descend");
    require_offsets(deny_offsets, requests, "exact_match: deny_offsets descend");
    const std::vector<UserSet> users = user_sets(ads, requests, present, value_offsets, value_ids);
    auto replies = std::make_unique<Replies>(static_cast<size_t>(requests));
    const auto match_one = [&](int64_t b) {
      const int64_t first = leaf_offsets[b];
      grace::require(max_ads[b] >= 0, "exact_match: max_ads is negative");
      try {
        (*replies)[static_cast<size_t>(b)] = matcher.match(
            {leaves + first, scores + first, leaf_offsets[b + 1] - first, bitmask + b * ads.words,
             users.data() + b * num_sets, paused, deny + deny_offsets[b],
             deny_offsets[b + 1] - deny_offsets[b], max_ads[b]});
      } catch (LeafFault& found) {
        found.position += first;
        throw;
      }
    };
    try {
      matcher.workers.run(requests, match_one);
    } catch (const LeafFault& found) {
      fault[0] = found.kind;
      fault[1] = found.position;
      return;
    }
    reply_offsets[0] = 0;
    for (int64_t b = 0; b < requests; ++b) {
      const Reply& reply = (*replies)[static_cast<size_t>(b)];
      reply_offsets[b + 1] = reply_offsets[b] + static_cast<int64_t>(reply.ad_ids.size());
      write_counts(reply.counts, counts + b * (kFixedCounts + num_sets));
    }
    *replies_handle = reinterpret_cast<uint64_t>(replies.release());
  });
}

// Each array is [reply_offsets[requests]], one request after another.
GRACE_API int32_t grace_replies_take(uint64_t replies_handle, int64_t* ad_ids, float* scores,
                                     int32_t* positions) {
  return grace::guarded([&] {
    for (const Reply& reply : *reinterpret_cast<const Replies*>(replies_handle)) {
      ad_ids = std::copy(reply.ad_ids.begin(), reply.ad_ids.end(), ad_ids);
      scores = std::copy(reply.scores.begin(), reply.scores.end(), scores);
      positions = std::copy(reply.positions.begin(), reply.positions.end(), positions);
    }
  });
}

GRACE_API int32_t grace_replies_drop(uint64_t replies_handle) {
  return grace::guarded([&] { delete reinterpret_cast<Replies*>(replies_handle); });
}
