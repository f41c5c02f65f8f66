// Random catalogues and requests for expand-and-match, checked by slow code over sets and sorts.
//
// Buffers are exact-size heap blocks, so that the sanitizers see every read beyond them.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <set>
#include <vector>

#include "fuzz_driver.h"

extern "C" {
int32_t grace_exact_open(int32_t, int64_t, const int64_t*, int64_t, const int64_t*, const int32_t*,
                         const float*, int64_t, const int32_t*, int32_t, const uint64_t*,
                         const int32_t*, uint64_t*);
int32_t grace_exact_add_set(uint64_t, int64_t, int64_t, const int64_t*, const int32_t*,
                            const int64_t*, const int32_t*, int32_t);
int32_t grace_exact_close(uint64_t);
int32_t grace_exact_match(uint64_t, int64_t, const int64_t*, const int32_t*, const float*,
                          const uint64_t*, const uint8_t*, const int64_t*, const int32_t*,
                          const uint64_t*, const int64_t*, const int64_t*, const int64_t*, int64_t*,
                          int64_t*, int64_t*, uint64_t*);
int32_t grace_replies_take(uint64_t, int64_t*, float*, int32_t*);
int32_t grace_replies_drop(uint64_t);
int32_t grace_replies_write(uint64_t, int64_t, const int32_t*, const char* const*, const int64_t*,
                            const char*, int64_t, const char*, int64_t, const uint32_t*, int64_t,
                            uint8_t*, int64_t*);
}

namespace {

using fuzz::below;
using fuzz::chance;
using fuzz::Random;
using List = std::set<int32_t>;

constexpr int64_t kFixedCounts = 6;
constexpr int32_t kNoLeaf = -1;

// Lists of numbers as offsets and one heap block that ends where its elements do.
template <typename T>
struct Lists {
  std::vector<int64_t> offsets{0};
  std::vector<T> values;

  template <typename Range>
  void add(const Range& list) {
    values.insert(values.end(), list.begin(), list.end());
    offsets.push_back(static_cast<int64_t>(values.size()));
  }

  void fit() {
    offsets.shrink_to_fit();
    values.shrink_to_fit();
  }
};

struct SetRules {
  std::vector<List> include, exclude;
  Lists<int32_t> include_lists, exclude_lists;
  int64_t num_values;
  bool missing_passes_exclude;
};

struct Catalogue {
  int32_t words;
  std::vector<int64_t> offsets{0};
  std::vector<int64_t> ids;
  std::vector<int32_t> rule;
  std::vector<float> weight;
  std::vector<int32_t> rule_bitmask;
  std::vector<uint64_t> table;
  std::vector<int32_t> rule_sets;
  std::vector<SetRules> sets;

  int64_t num_leaves() const { return static_cast<int64_t>(offsets.size()) - 1; }
  int64_t num_ads() const { return static_cast<int64_t>(ids.size()); }
};

List random_list(Random& random, int64_t values, int64_t most) {
  List list;
  for (int64_t n = values == 0 ? 0 : below(random, most + 1); n > 0; --n) {
    list.insert(static_cast<int32_t>(below(random, values)));
  }
  return list;
}

SetRules random_set(Random& random) {
  SetRules set;
  set.num_values = chance(random, 10) ? 0 : 1 + below(random, 200);
  set.missing_passes_exclude = chance(random, 50);
  const bool excludes = chance(random, 70);
  for (int64_t r = 1 + below(random, 20); r > 0; --r) {
    set.include.push_back(chance(random, 50) ? List{} : random_list(random, set.num_values, 40));
    set.exclude.push_back(excludes ? random_list(random, set.num_values, 5) : List{});
    set.include_lists.add(set.include.back());
    set.exclude_lists.add(set.exclude.back());
  }
  set.include_lists.fit();
  set.exclude_lists.fit();
  return set;
}

Catalogue random_catalogue(Random& random) {
  Catalogue c;
  c.words = static_cast<int32_t>(1 + below(random, 5));
  const int64_t rows = 1 + below(random, 9);
  c.table.resize(static_cast<size_t>(rows * c.words));
  for (uint64_t& word : c.table) word = random() | random() | random();
  for (int64_t s = below(random, 4); s > 0; --s) c.sets.push_back(random_set(random));
  const int64_t rules = 1 + below(random, 150);
  c.rule_bitmask.resize(static_cast<size_t>(rules));
  c.rule_sets.resize(static_cast<size_t>(rules) * c.sets.size());
  for (int32_t& row : c.rule_bitmask) row = static_cast<int32_t>(below(random, rows));
  for (size_t i = 0; i < c.rule_sets.size(); ++i) {
    const auto count = static_cast<int64_t>(c.sets[i % c.sets.size()].include.size());
    c.rule_sets[i] = static_cast<int32_t>(below(random, count));
  }
  for (int64_t leaf = 1 + below(random, 99); leaf > 0; --leaf) {
    c.offsets.push_back(c.offsets.back() + 1 + (chance(random, 20) ? below(random, 30) : 0));
  }
  const auto ads = static_cast<size_t>(c.offsets.back());
  c.ids.resize(ads);
  c.rule.resize(ads);
  c.weight.resize(ads);
  for (size_t i = 0; i < ads; ++i) c.ids[i] = 3 * static_cast<int64_t>(i) + below(random, 3);
  std::shuffle(c.ids.begin(), c.ids.end(), random);
  for (int32_t& rule : c.rule) rule = static_cast<int32_t>(below(random, rules));
  for (float& weight : c.weight) weight = chance(random, 50) ? 0 : static_cast<float>(random() % 4);
  c.offsets.shrink_to_fit();
  return c;
}

struct Requests {
  int64_t count;
  Lists<int32_t> leaves;
  std::vector<float> scores;
  std::vector<uint64_t> bitmask;
  std::vector<uint8_t> present;  // [sets, requests]
  std::vector<List> user_values;
  Lists<int32_t> value_lists;
  std::vector<uint64_t> paused;
  Lists<int64_t> deny;
  std::vector<int64_t> max_ads;
};

Requests random_requests(Random& random, const Catalogue& c) {
  Requests r;
  r.count = below(random, 6);
  for (int64_t b = 0; b < r.count; ++b) {
    std::vector<int32_t> leaves;
    for (int32_t leaf = 0; leaf < c.num_leaves(); ++leaf) {
      if (chance(random, 60)) leaves.push_back(leaf);
      if (chance(random, 5)) leaves.push_back(kNoLeaf);
    }
    std::shuffle(leaves.begin(), leaves.end(), random);
    const bool sorted = chance(random, 50);
    for (size_t i = 0; i < leaves.size(); ++i) {
      const bool dead = leaves[i] == kNoLeaf && chance(random, 50);
      const float score = sorted ? -static_cast<float>(i / 3) : -0.5f * below(random, 5);
      r.scores.push_back(dead ? std::numeric_limits<float>::quiet_NaN() : score);
    }
    r.leaves.add(leaves);
    std::vector<int64_t> denied;
    for (int64_t n = below(random, 20); n > 0; --n) {
      denied.push_back(chance(random, 80) ? c.ids[below(random, c.num_ads())] : -below(random, 9));
    }
    r.deny.add(denied);
    r.max_ads.push_back(chance(random, 50) ? below(random, 40) : INT64_MAX);
  }
  r.bitmask.resize(static_cast<size_t>(r.count * c.words));
  for (uint64_t& word : r.bitmask) word = chance(random, 60) ? 0 : uint64_t{1} << below(random, 64);
  for (const SetRules& set : c.sets) {
    for (int64_t b = 0; b < r.count; ++b) {
      r.user_values.push_back(random_list(random, set.num_values, 20));
      r.value_lists.add(r.user_values.back());
      r.present.push_back(!r.user_values.back().empty() || chance(random, 50));
    }
  }
  if (chance(random, 50)) {
    r.paused.resize(static_cast<size_t>((c.num_ads() + 63) / 64));
    for (uint64_t& word : r.paused) word = random() & random();
  }
  r.leaves.fit();
  r.scores.shrink_to_fit();
  r.present.shrink_to_fit();
  r.value_lists.fit();
  r.deny.fit();
  return r;
}

bool meet(const List& a, const List& b) {
  return std::any_of(a.begin(), a.end(), [&](int32_t value) { return b.count(value) != 0; });
}

// Where an ad is counted: 2 attributes, 3 paused, 4 denied, 5 matched, 6.. sets.
int64_t fate(const Catalogue& c, const Requests& r, int64_t b, int64_t ad) {
  const int32_t rule = c.rule[ad];
  for (int32_t w = 0; w < c.words; ++w) {
    const uint64_t row = c.table[int64_t{c.rule_bitmask[rule]} * c.words + w];
    if ((r.bitmask[b * c.words + w] & ~row) != 0) return 2;
  }
  for (size_t s = 0; s < c.sets.size(); ++s) {
    const SetRules& set = c.sets[s];
    const int32_t id = c.rule_sets[static_cast<size_t>(rule) * c.sets.size() + s];
    const size_t at = s * static_cast<size_t>(r.count) + static_cast<size_t>(b);
    const List& user = r.user_values[at];
    const bool missing = r.present[at] == 0;
    if (!set.include[id].empty() && !meet(set.include[id], user)) return kFixedCounts + s;
    if (set.exclude[id].empty()) continue;
    if (missing ? !set.missing_passes_exclude : meet(set.exclude[id], user)) {
      return kFixedCounts + s;
    }
  }
  if (!r.paused.empty() && ((r.paused[ad / 64] >> (ad % 64)) & 1) != 0) return 3;
  const auto denied = r.deny.values.begin();
  if (std::count(denied + r.deny.offsets[b], denied + r.deny.offsets[b + 1], c.ids[ad]) != 0) {
    return 4;
  }
  return 5;
}

struct Expected {
  float score;
  float weight;
  int64_t id;
  int64_t position;

  bool operator<(const Expected& other) const {
    if (score != other.score) return score > other.score;
    if (weight != other.weight) return weight > other.weight;
    return id < other.id;
  }
};

std::vector<Expected> expect(const Catalogue& c, const Requests& r, int64_t b,
                             std::vector<int64_t>& counts) {
  std::vector<Expected> ads;
  for (int64_t i = r.leaves.offsets[b]; i < r.leaves.offsets[b + 1]; ++i) {
    const int32_t leaf = r.leaves.values[i];
    if (leaf == kNoLeaf) continue;
    ++counts[0];
    for (int64_t ad = c.offsets[leaf]; ad < c.offsets[leaf + 1]; ++ad) {
      const int64_t what = fate(c, r, b, ad);
      ++counts[1];
      ++counts[what];
      if (what == 5) ads.push_back({r.scores[i], c.weight[ad], c.ids[ad], i - r.leaves.offsets[b]});
    }
  }
  std::sort(ads.begin(), ads.end());
  if (static_cast<int64_t>(ads.size()) > r.max_ads[b]) ads.resize(r.max_ads[b]);
  return ads;
}

uint64_t open(const Catalogue& c, int32_t threads) {
  uint64_t handle = 0;
  EXPECT(grace_exact_open(threads, c.num_leaves(), c.offsets.data(), c.num_ads(), c.ids.data(),
                          c.rule.data(), c.weight.data(),
                          static_cast<int64_t>(c.rule_bitmask.size()), c.rule_bitmask.data(),
                          c.words, c.table.data(), c.rule_sets.data(), &handle) == 0);
  for (const SetRules& set : c.sets) {
    EXPECT(grace_exact_add_set(handle, static_cast<int64_t>(set.include.size()), set.num_values,
                               set.include_lists.offsets.data(), set.include_lists.values.data(),
                               set.exclude_lists.offsets.data(), set.exclude_lists.values.data(),
                               set.missing_passes_exclude) == 0);
  }
  return handle;
}

// What one call fills.
struct Answer {
  std::vector<int64_t> offsets, counts;
  int64_t fault[2] = {0, 0};
  uint64_t replies = 0;

  Answer(uint64_t matcher, const Catalogue& c, const Requests& r)
      : offsets(r.count + 1), counts(r.count * (kFixedCounts + c.sets.size())) {
    EXPECT(grace_exact_match(matcher, r.count, r.leaves.offsets.data(), r.leaves.values.data(),
                             r.scores.data(), r.bitmask.data(), r.present.data(),
                             r.value_lists.offsets.data(), r.value_lists.values.data(),
                             r.paused.empty() ? nullptr : r.paused.data(), r.deny.offsets.data(),
                             r.deny.values.data(), r.max_ads.data(), offsets.data(), counts.data(),
                             fault, &replies) == 0);
  }
};

// Into room that is just enough, and into less.
void check_written(const Answer& answer, int64_t requests) {
  const char name[] = {'r', '7'};
  const std::vector<const char*> texts(2 * requests, name);
  std::vector<int64_t> sizes(2 * requests, 0);
  std::fill_n(sizes.begin(), requests, 2);
  std::vector<int32_t> rows(requests);
  for (int64_t i = 0; i < requests; ++i) rows[i] = static_cast<int32_t>(i);
  const std::vector<uint32_t> timings(5 * requests, UINT32_MAX);
  std::vector<int64_t> ends(requests);
  const auto write = [&](int64_t room, uint8_t* out) {
    return grace_replies_write(answer.replies, requests, rows.data(), texts.data(), sizes.data(),
                               name, 2, name, 2, timings.data(), room, out, ends.data());
  };
  std::vector<uint8_t> roomy(12 * answer.offsets.back() + 128 * requests);
  EXPECT(write(static_cast<int64_t>(roomy.size()), roomy.data()) == 0);
  if (requests == 0) return;
  std::vector<uint8_t> exact(ends.back());
  EXPECT(write(ends.back(), exact.data()) == 0);
  EXPECT(std::equal(exact.begin(), exact.end(), roomy.begin()));
  exact.pop_back();
  exact.shrink_to_fit();
  EXPECT(write(static_cast<int64_t>(exact.size()), exact.data()) != 0);
}

void check_answer(uint64_t matcher, const Catalogue& c, const Requests& r) {
  const Answer answer(matcher, c, r);
  EXPECT(answer.fault[0] == 0);
  std::vector<int64_t> ids(answer.offsets.back());
  std::vector<float> scores(ids.size());
  std::vector<int32_t> positions(ids.size());
  EXPECT(grace_replies_take(answer.replies, ids.data(), scores.data(), positions.data()) == 0);
  check_written(answer, r.count);
  EXPECT(grace_replies_drop(answer.replies) == 0);
  const size_t width = kFixedCounts + c.sets.size();
  for (int64_t b = 0; b < r.count; ++b) {
    std::vector<int64_t> counts(width);
    const std::vector<Expected> ads = expect(c, r, b, counts);
    EXPECT(std::equal(counts.begin(), counts.end(), answer.counts.begin() + b * width));
    EXPECT(answer.offsets[b + 1] - answer.offsets[b] == static_cast<int64_t>(ads.size()));
    for (size_t i = 0; i < ads.size(); ++i) {
      const int64_t at = answer.offsets[b] + static_cast<int64_t>(i);
      EXPECT(ids[at] == ads[i].id && scores[at] == ads[i].score);
      EXPECT(positions[at] == ads[i].position);
    }
  }
}

// Spoils one live leaf: out of range, scored NaN, or named twice.
void check_fault(Random& random, uint64_t matcher, const Catalogue& c, Requests r) {
  if (r.leaves.values.empty()) return;
  const int64_t at = below(random, static_cast<int64_t>(r.leaves.values.size()));
  if (r.leaves.values[at] == kNoLeaf) return;
  const int64_t kind = 1 + below(random, 3);
  if (kind == 1) {
    const int32_t wrong[] = {INT32_MIN, -2, static_cast<int32_t>(c.num_leaves()), INT32_MAX};
    r.leaves.values[at] = wrong[below(random, 4)];
  } else if (kind == 2) {
    r.scores[at] = std::nanf("");
  } else {
    if (at == 0 || r.leaves.values[at - 1] == kNoLeaf) return;
    if (std::count(r.leaves.offsets.begin(), r.leaves.offsets.end(), at) != 0) return;
    r.leaves.values[at] = r.leaves.values[at - 1];
  }
  const Answer answer(matcher, c, r);
  EXPECT(answer.fault[0] == kind && answer.fault[1] == at && answer.replies == 0);
}

void fuzz_match(Random& random) {
  const Catalogue catalogue = random_catalogue(random);
  const uint64_t matcher = open(catalogue, static_cast<int32_t>(1 + below(random, 3)));
  for (int call = 0; call < 4; ++call) {
    const Requests requests = random_requests(random, catalogue);
    check_answer(matcher, catalogue, requests);
    check_fault(random, matcher, catalogue, requests);
  }
  EXPECT(grace_exact_close(matcher) == 0);
}

}  // namespace

int main(int argc, char** argv) {
  return fuzz::run("fuzz_expand", argc, argv, [](Random& random) { fuzz_match(random); });
}
