// The order of a reply: by score, then weight, both descending, then id. An ad of which an entity
// has its limit already is left out.
#include <algorithm>

#include "grace/expand.h"

namespace grace::exact {

namespace {

// Makes the limits of a request, with no ad counted yet.
void reset_limits(const Ads& ads, const Request& request, Scratch& scratch) {
  size_t limits = 0;
  for (size_t kind = 0; request.at_most != nullptr && kind < ads.entities.size(); ++kind) {
    if (request.at_most[kind] == kNoLimit) continue;
    if (limits == scratch.limits.size()) scratch.limits.emplace_back();
    Limit& limit = scratch.limits[limits++];
    limit.of_ad = ads.entities[kind].of_ad;
    limit.most = request.at_most[kind];
    limit.entities.reset(static_cast<int64_t>(scratch.matches.size()));
    limit.ads.clear();
  }
  scratch.limits.resize(limits);
}

// Counts an ad. False, and counts nothing, if an entity of the ad has its limit already. Inlined,
// it would slow replies that have no limits.
__attribute__((noinline)) bool take_room(std::vector<Limit>& limits, int32_t ordinal) {
  for (Limit& limit : limits) {
    limit.counted = nullptr;
    const int32_t place = limit.of_ad[ordinal];
    if (place == kNoEntity) continue;
    const auto number = static_cast<size_t>(limit.entities.number_of(place));
    if (number == limit.ads.size()) limit.ads.push_back(0);
    if (limit.ads[number] >= limit.most) return false;
    limit.counted = &limit.ads[number];
  }
  for (const Limit& limit : limits) {
    if (limit.counted != nullptr) ++*limit.counted;
  }
  return true;
}

// Orders the matches of one score by weight and id. Each weight is read once: it must not change
// while they are sorted.
void order_tied(const Ads& ads, const float* weight, const std::vector<Match>& matches,
                size_t begin, size_t end, std::vector<Candidate>& tied) {
  tied.clear();
  for (size_t i = begin; i < end; ++i) {
    const int32_t ordinal = matches[i].ordinal;
    tied.push_back({ads.ids[ordinal], read_live(weight + ordinal), static_cast<int32_t>(i)});
  }
  std::sort(tied.begin(), tied.end(), [](const Candidate& a, const Candidate& b) {
    return a.weight != b.weight ? a.weight > b.weight : a.id < b.id;
  });
}

}  // namespace

// Matches come by descending score; only those of equal scores need ordering.
void write_reply(const Ads& ads, const Request& request, Scratch& scratch, Reply& reply) {
  reset_limits(ads, request, scratch);
  const std::vector<Match>& matches = scratch.matches;
  const size_t most = std::min(matches.size(), static_cast<size_t>(request.max_ads));
  reply.ad_ids.reserve(most);
  reply.positions.reserve(most);
  const bool limited = !scratch.limits.empty();
  // False once the reply is full.
  const auto offer = [&](const Match& match, int64_t id) {
    if (limited && !take_room(scratch.limits, match.ordinal)) {
      ++reply.counts.limited;
      return true;
    }
    if (reply.ad_ids.size() == most) return false;
    reply.ad_ids.push_back(id);
    reply.positions.push_back(match.position);
    return true;
  };
  size_t asked = 0;
  bool more = true;
  for (size_t begin = 0, end = 0; more && begin < matches.size(); begin = end) {
    end = begin + 1;
    while (end < matches.size() && matches[end].score == matches[begin].score) ++end;
    for (; asked < std::min<size_t>(matches.size(), end + kAhead); ++asked) {
      prefetch(ads.ids + matches[asked].ordinal);
      prefetch(request.weight + matches[asked].ordinal);
    }
    if (end - begin == 1) {
      more = offer(matches[begin], ads.ids[matches[begin].ordinal]);
      continue;
    }
    order_tied(ads, request.weight, matches, begin, end, scratch.tied);
    for (size_t i = 0; more && i < scratch.tied.size(); ++i) {
      more = offer(matches[scratch.tied[i].match], scratch.tied[i].id);
    }
  }
}

}  // namespace grace::exact
