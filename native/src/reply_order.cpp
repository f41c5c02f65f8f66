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

// The room that a request's limits leave.
class Room {
 public:
  explicit Room(std::vector<Limit>& limits) : limits_(limits) {}

  // False if an entity of the ad has its limit already.
  bool has(int32_t ordinal) {
    counted_.clear();
    for (Limit& limit : limits_) {
      const int32_t place = limit.of_ad[ordinal];
      if (place == kNoEntity) continue;
      const auto number = static_cast<size_t>(limit.entities.number_of(place));
      if (number == limit.ads.size()) limit.ads.push_back(0);
      if (limit.ads[number] >= limit.most) return false;
      counted_.push_back(&limit.ads[number]);
    }
    return true;
  }

  // Counts the ad of the last `has`, which was true.
  void take() {
    for (int64_t* ads : counted_) ++*ads;
  }

 private:
  std::vector<Limit>& limits_;
  std::vector<int64_t*> counted_;
};

// Orders the matches of one score by weight and id. Each weight is read once: it must not change
// while they are sorted.
void order_tied(const Ads& ads, const float* weight, const std::vector<Match>& matches,
                size_t begin, size_t end, std::vector<Candidate>& tied) {
  tied.clear();
  for (size_t i = begin; i < end; ++i) {
    const int32_t ordinal = matches[i].ordinal;
    const float read = end - begin == 1 ? 0 : read_live(weight + ordinal);
    tied.push_back({ads.ids[ordinal], read, static_cast<int32_t>(i)});
  }
  std::sort(tied.begin(), tied.end(), [](const Candidate& a, const Candidate& b) {
    return a.weight != b.weight ? a.weight > b.weight : a.id < b.id;
  });
}

}  // namespace

// Matches come by descending score; only those of equal scores need ordering.
void write_reply(const Ads& ads, const Request& request, Scratch& scratch, Reply& reply) {
  reset_limits(ads, request, scratch);
  Room room(scratch.limits);
  const std::vector<Match>& matches = scratch.matches;
  const size_t most = std::min(matches.size(), static_cast<size_t>(request.max_ads));
  reply.ad_ids.reserve(most);
  reply.positions.reserve(most);
  size_t asked = 0;
  for (size_t begin = 0, end = 0; begin < matches.size(); begin = end) {
    if (request.at_most == nullptr && reply.ad_ids.size() == most) return;
    end = begin + 1;
    while (end < matches.size() && matches[end].score == matches[begin].score) ++end;
    for (; asked < std::min<size_t>(matches.size(), end + kAhead); ++asked) {
      prefetch(ads.ids + matches[asked].ordinal);
      prefetch(request.weight + matches[asked].ordinal);
    }
    order_tied(ads, request.weight, matches, begin, end, scratch.tied);
    for (const Candidate& next : scratch.tied) {
      const Match& match = matches[next.match];
      if (!room.has(match.ordinal)) {
        ++reply.counts.limited;
        continue;
      }
      if (static_cast<int64_t>(reply.ad_ids.size()) == request.max_ads) return;
      room.take();
      reply.ad_ids.push_back(next.id);
      reply.positions.push_back(match.position);
    }
  }
}

}  // namespace grace::exact
