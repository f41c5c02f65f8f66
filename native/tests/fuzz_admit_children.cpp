// Random tries, matchers and beams for the admission of children, checked by slow code over bits.
//
// Buffers are exact-size heap blocks, so that the sanitizers see every read beyond them.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "fuzz_driver.h"
#include "grace/matcher_ids.h"

struct GraceSetMatcher {
  GraceMatcherIds matcher;
  const uint64_t* table;
  const uint8_t* star;
  const int32_t* offsets;
  const uint64_t* hashes;
  uint32_t bits;
  uint32_t hashes_per_value;
};

extern "C" {
int32_t grace_admit_children(int32_t, int64_t, int64_t, const int32_t*, int64_t, const int32_t*,
                             const int32_t*, const GraceMatcherIds*, const uint64_t*, int32_t,
                             const uint64_t*, const GraceSetMatcher*, int32_t, int32_t*, int64_t,
                             int32_t*, int32_t*);
}

namespace {

using fuzz::below;
using fuzz::chance;
using fuzz::Random;

constexpr int32_t kNoNode = -1;

// A heap block that ends where its elements do.
template <typename T>
std::vector<T> block(int64_t size) {
  std::vector<T> values;
  values.reserve(static_cast<size_t>(size));
  values.resize(static_cast<size_t>(size));
  return values;
}

// The row ids of child entries in one of the three modes, and the ids of each entry.
struct Ids {
  std::vector<int32_t> index, offsets;
  std::vector<GraceIdLevel> levels;
  std::vector<std::vector<int32_t>> of_entry;

  GraceMatcherIds view() const {
    return {index.data(), offsets.empty() ? nullptr : offsets.data(),
            levels.empty() ? nullptr : levels.data(), static_cast<int64_t>(levels.size())};
  }
};

struct Set {
  uint32_t bits, hashes_per_value;
  Ids ids;
  std::vector<uint64_t> table;
  std::vector<uint8_t> star;
  std::vector<int32_t> offsets;
  std::vector<uint64_t> hashes;
};

struct Case {
  int64_t requests, beams;
  int32_t words;
  std::vector<int32_t> node_offsets, tokens;
  Ids bitmask;
  std::vector<uint64_t> bitmask_table, users;
  std::vector<Set> sets;
  std::vector<int32_t> nodes;

  int64_t internal_nodes() const { return static_cast<int64_t>(node_offsets.size()) - 1; }
  int64_t entries() const { return static_cast<int64_t>(tokens.size()); }
};

Ids random_rows(Random& random, int64_t entries, int64_t rows) {
  Ids ids;
  const int64_t mode = below(random, 3);
  ids.of_entry.resize(entries);
  if (mode == 1) ids.offsets.push_back(0);
  int64_t count = 1;
  int64_t total = 0;
  for (int64_t entry = 0; entry < entries; ++entry) {
    if (mode == 1) count = 1 + below(random, 5);
    if (mode == 2 && (entry == 0 || chance(random, 10))) {
      count = 1 + below(random, 5);
      ids.levels.push_back({entry, total, count});
    }
    for (int64_t i = 0; i < count; ++i) {
      ids.of_entry[entry].push_back(static_cast<int32_t>(below(random, rows)));
    }
    total += count;
    if (mode == 1) ids.offsets.push_back(static_cast<int32_t>(total));
  }
  ids.index = block<int32_t>(0);
  for (const auto& each : ids.of_entry) {
    ids.index.insert(ids.index.end(), each.begin(), each.end());
  }
  ids.index.shrink_to_fit();
  ids.offsets.shrink_to_fit();
  ids.levels.shrink_to_fit();
  return ids;
}

Set random_set(Random& random, const Case& c) {
  Set set;
  set.bits = uint32_t{64} << below(random, chance(random, 5) ? 11 : 4);
  set.hashes_per_value = static_cast<uint32_t>(1 + below(random, 4));
  const int64_t rows = 1 + below(random, 9);
  set.ids = random_rows(random, c.entries(), rows);
  set.table = block<uint64_t>(rows * (set.bits / 64));
  const bool sparse = chance(random, 50);
  for (uint64_t& word : set.table) word = sparse ? random() & random() : random() | random();
  set.star = block<uint8_t>(rows);
  for (uint8_t& star : set.star) star = chance(random, 15);
  set.offsets = block<int32_t>(c.requests + 1);
  for (int64_t b = 0; b < c.requests; ++b) {
    set.offsets[b + 1] = set.offsets[b] + static_cast<int32_t>(below(random, 65));
  }
  set.hashes = block<uint64_t>(set.offsets.back());
  for (uint64_t& hash : set.hashes) hash = random();
  return set;
}

Case random_case(Random& random) {
  Case c;
  c.requests = 1 + below(random, 5);
  c.beams = below(random, 70);
  c.node_offsets.push_back(0);
  const int64_t most = chance(random, 10) ? 300 : 9;
  for (int64_t n = 1 + below(random, 99); n > 0; --n) {
    c.node_offsets.push_back(c.node_offsets.back() + static_cast<int32_t>(1 + below(random, most)));
  }
  c.node_offsets.shrink_to_fit();
  c.tokens = block<int32_t>(c.node_offsets.back());
  for (int32_t& token : c.tokens) token = static_cast<int32_t>(below(random, 1 << 16));
  c.words = static_cast<int32_t>(below(random, 6));
  const int64_t rows = 1 + below(random, 9);
  if (c.words > 0) c.bitmask = random_rows(random, c.entries(), rows);
  c.bitmask_table = block<uint64_t>(rows * c.words);
  for (uint64_t& word : c.bitmask_table) word = random() | random() | random();
  c.users = block<uint64_t>(c.requests * c.words);
  for (uint64_t& word : c.users) word = chance(random, 70) ? 0 : uint64_t{1} << below(random, 64);
  for (int64_t s = below(random, 4); s > 0; --s) c.sets.push_back(random_set(random, c));
  c.nodes = block<int32_t>(c.requests * c.beams);
  for (int32_t& node : c.nodes) {
    node = chance(random, 25) ? kNoNode : static_cast<int32_t>(below(random, c.internal_nodes()));
  }
  return c;
}

bool bit_of(const uint64_t* row, uint64_t bit) { return ((row[bit / 64] >> (bit % 64)) & 1) != 0; }

bool allows(const Case& c, int64_t request, int64_t id) {
  const uint64_t* row = c.bitmask_table.data() + id * c.words;
  for (int64_t bit = 0; bit < int64_t{c.words} * 64; ++bit) {
    if (bit_of(c.users.data() + request * c.words, bit) && !bit_of(row, bit)) return false;
  }
  return true;
}

bool may_hold(const Set& set, int64_t request, int64_t id) {
  const uint64_t* row = set.table.data() + id * (set.bits / 64);
  if (set.star[id] != 0) return true;
  for (int32_t q = set.offsets[request]; q < set.offsets[request + 1]; ++q) {
    bool all = true;
    for (uint32_t i = 0; i < set.hashes_per_value; ++i) {
      all = all && bit_of(row, ((set.hashes[q] >> (16 * i)) & 0xFFFF) % set.bits);
    }
    if (all) return true;
  }
  return false;
}

bool admitted(const Case& c, int64_t request, int64_t entry) {
  bool allowed = c.words == 0;
  if (c.words > 0) {
    for (const int32_t id : c.bitmask.of_entry[entry]) allowed |= allows(c, request, id);
  }
  if (!allowed) return false;
  for (const Set& set : c.sets) {
    bool any = false;
    for (const int32_t id : set.ids.of_entry[entry]) any |= may_hold(set, request, id);
    if (!any) return false;
  }
  return true;
}

struct Answer {
  std::vector<int32_t> offsets, tokens, children;
  int32_t status;

  Answer(const Case& c, int32_t threads, int64_t room)
      : offsets(block<int32_t>(c.requests * c.beams + 1)),
        tokens(block<int32_t>(room)),
        children(block<int32_t>(room)) {
    const GraceMatcherIds bitmask = c.bitmask.view();
    auto sets = std::make_unique<GraceSetMatcher[]>(c.sets.size());
    for (size_t s = 0; s < c.sets.size(); ++s) {
      const Set& set = c.sets[s];
      sets[s] = {set.ids.view(),    set.table.data(), set.star.data(),     set.offsets.data(),
                 set.hashes.data(), set.bits,         set.hashes_per_value};
    }
    status = grace_admit_children(
        threads, c.requests, c.beams, c.nodes.data(), c.internal_nodes(), c.node_offsets.data(),
        c.tokens.data(), &bitmask, c.bitmask_table.data(), c.words, c.users.data(), sets.get(),
        static_cast<int32_t>(c.sets.size()), offsets.data(), room, tokens.data(), children.data());
  }
};

int64_t num_children(const Case& c) {
  int64_t count = 0;
  for (int32_t node : c.nodes) {
    if (node != kNoNode) count += c.node_offsets[node + 1] - c.node_offsets[node];
  }
  return count;
}

void check_answer(Random& random, const Case& c) {
  const int64_t slack = chance(random, 70) ? 0 : below(random, 50);
  const Answer answer(c, static_cast<int32_t>(1 + below(random, 4)), num_children(c) + slack);
  EXPECT(answer.status == 0);
  EXPECT(answer.offsets[0] == 0);
  int32_t at = 0;
  for (int64_t r = 0; r < c.requests * c.beams; ++r) {
    const int32_t node = c.nodes[r];
    for (int32_t e = node == kNoNode ? 0 : c.node_offsets[node];
         e < (node == kNoNode ? 0 : c.node_offsets[node + 1]); ++e) {
      if (!admitted(c, r / c.beams, e)) continue;
      EXPECT(answer.tokens[at] == c.tokens[e] && answer.children[at] == e + 1);
      ++at;
    }
    EXPECT(answer.offsets[r + 1] == at);
  }
}

// Checks that a node outside of the trie, or one place too few for the children, is refused.
void check_refusal(Random& random, Case c) {
  const int64_t children = num_children(c);
  if (children > 0) EXPECT(Answer(c, 2, children - 1).status != 0);
  if (c.nodes.empty()) return;
  const int32_t wrong[] = {INT32_MIN, -2, static_cast<int32_t>(c.internal_nodes()), INT32_MAX};
  c.nodes[below(random, static_cast<int64_t>(c.nodes.size()))] = wrong[below(random, 4)];
  EXPECT(Answer(c, 2, children).status != 0);
}

}  // namespace

int main(int argc, char** argv) {
  return fuzz::run("fuzz_admit_children", argc, argv, [](Random& random) {
    const Case c = random_case(random);
    check_answer(random, c);
    check_refusal(random, c);
  });
}
