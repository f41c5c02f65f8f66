// Replies to requests that limit how many returned ads share an entity.
#include "grace/expand.h"
#include "grace/ranking.h"

namespace grace::exact {

namespace {

// Makes the limits of a request, with no ad counted yet.
void reset_limits(const Ads& ads, const Request& request, Scratch& scratch) {
  size_t limits = 0;
  for (size_t kind = 0; kind < ads.entities.size(); ++kind) {
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

}  // namespace

void write_limited_reply(const Ads& ads, const Request& request, Scratch& scratch, Reply& reply) {
  reset_limits(ads, request, scratch);
  const std::vector<Match>& matches = scratch.matches;
  TiedMatches ties{ads, request.weight, matches};
  Room room(scratch.limits);
  for (size_t begin = 0, end = 0; begin < matches.size(); begin = end) {
    end = ties.end_of(begin);
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
