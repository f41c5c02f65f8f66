// From leaves to the ads that a user may see, in reply order: the exact half of targeting, on bits
// and interned values, never on Bloom bits.
#pragma once

#include <utility>
#include <vector>

#include "grace/component.h"
#include "grace/id_tables.h"
#include "grace/parallel.h"

namespace grace::exact {

constexpr int64_t kAhead = 32;  // elements from prefetch to use

// Reads what another thread may write at the same time: the old value or the new one.
template <typename Value>
Value read_live(const Value* at) {
  Value value;
  __atomic_load(at, &value, __ATOMIC_RELAXED);
  return value;
}

constexpr int32_t kNoLeaf = -1;    // a dead beam's leaf
constexpr int32_t kNoEntity = -1;  // the place of an ad that belongs to none
constexpr int64_t kNoLimit = -1;

// Verdicts on a rule: it passes, or fails by component c: kFails + c.
constexpr int32_t kPasses = 0;
constexpr int32_t kFails = 1;

// The entities of one kind: places 0 .. count - 1, and that of each ordinal, or kNoEntity.
struct Entities {
  int64_t count;
  const int32_t* of_ad;
};

// The arrays of a verified snapshot; see index/matching/ads.py and index/targeting/rules.py.
// Ordinals fit int32.
struct Ads {
  int64_t num_leaves;
  int64_t num_ads;
  int64_t num_rules;
  int64_t num_alternatives;
  const int64_t* offsets;
  const int64_t* ids;
  const int32_t* rule;  // or num_rules + an alternative
  const float* weight;
  const int32_t* rows;  // [num_rules, components]: the row of each component
  // Of alternative i, one of the rules alternatives[offsets[i]] .. must pass.
  const int64_t* alternative_offsets;
  const int32_t* alternatives;
  std::vector<std::unique_ptr<const Component>> components;
  std::vector<Entities> entities;
};

// Each leaf at most once, and a score for each; dead ones are kNoLeaf.
struct Request {
  const int32_t* leaves;
  const float* scores;
  int64_t num_leaves;
  const void* const* asked;  // of each component, by the whole batch
  int64_t number;            // in the batch
  const uint64_t* stopped;   // a bit per ordinal, or null; another thread may change it meanwhile
  const float* weight;       // per ordinal; another thread may change it meanwhile
  const int64_t* excluded_ads;  // ad ids
  int64_t num_excluded_ads;
  const int64_t* entity_offsets;  // [kinds + 1], or null: the excluded entities of each kind
  const int32_t* entity_places;
  const int64_t* at_most;  // ads of one entity in the reply, per kind, or kNoLimit; or null
  int64_t max_ads;
};

// What became of the generated ads. Each is counted once, by the first test that it failed. Of the
// matched ones, `limited` counts those that at_most left out before max_ads cut the list.
struct Counts {
  int64_t leaves;      // live ones
  int64_t wasted = 0;  // those of them with no ad whose rule passes
  int64_t generated;
  std::vector<int64_t> failed;  // per component
  int64_t stopped;
  int64_t excluded;
  int64_t matched;
  int64_t limited = 0;
};

// The returned ads, best first, in parallel arrays.
struct Reply {
  std::vector<int64_t> ad_ids;
  std::vector<float> scores;
  std::vector<int32_t> positions;  // of their leaves, among the request's
  Counts counts;
};

struct LeafAds {
  float score;
  int32_t position;  // among the request's leaves
  int32_t first;     // ordinal
  int32_t count;
};

struct Match {
  float score;
  int32_t position;
  int32_t ordinal;
};

struct Candidate {
  int64_t id;
  float weight;
  int32_t match;  // its place among the matches
};

// A limit of one kind of entity, and how many ads of each entity the reply has so far.
struct Limit {
  const int32_t* of_ad;
  int64_t most;
  Numbering entities;
  std::vector<int64_t> ads;
  int64_t* counted = nullptr;  // of the latest ad's entity
};

// Work space, kept from request to request.
struct Scratch {
  IdSet<int32_t> distinct;
  std::vector<LeafAds> leaves;
  Numbering rules;                           // and alternatives
  std::vector<int32_t> plain;                // the rules among them, or that one of them has
  std::vector<int32_t> rule_numbers;         // per generated ad
  std::vector<int32_t> verdicts;             // per distinct rule or alternative
  std::vector<std::vector<uint64_t>> marks;  // per component; zero at rest
  std::vector<Match> matches;
  IdSet<int64_t> excluded_ads;
  IdSet<int32_t> excluded;
  std::vector<Candidate> tied;
  std::vector<Limit> limits;
};

// Writes the best matches, up to max_ads, and counts those that a limit (`at_most`) leaves out.
void write_reply(const Ads& ads, const Request& request, Scratch& scratch, Reply& reply);

// Any number of threads may ask one matcher at once.
struct Matcher {
  Matcher(Ads ads, int32_t threads) : ads(std::move(ads)), workers(threads, "grace-match") {}

  // Throws if a leaf cannot be answered.
  Reply match(const Request& request) const;

  Ads ads;          // complete before the first request
  Workers workers;  // who match a batch's requests
};

}  // namespace grace::exact
