// Random inputs for the builder's native half, checked by slow code over standard containers.
//
// Buffers are exact-size heap blocks, so that the sanitizers see every read beyond them.
#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "fuzz_driver.h"

struct GraceListColumn {
  const int64_t* offsets;
  const uint8_t* valid;
  const int32_t* codes;
};

struct GraceAttributeBits {
  int32_t first_bit;
  int32_t values;
  int32_t missing_passes_exclude;
};

extern "C" {
int32_t grace_rules_new(int32_t, const GraceAttributeBits*, int32_t, int32_t, void**);
int32_t grace_rules_free(void*);
int32_t grace_rules_add(void*, int64_t, const GraceListColumn*, int32_t, int32_t*, int32_t*);
int32_t grace_rules_sizes(void*, int64_t*);
int32_t grace_rules_take(void*, int32_t*, uint64_t*);
int32_t grace_rules_take_set(void*, int32_t, int64_t*, int32_t*);
int32_t grace_order_by_id(int64_t, const int64_t*, int32_t, int32_t*);
int32_t grace_order_by_sid(int64_t, const uint16_t*, int32_t, int32_t, int32_t*);
int32_t grace_first_use(int64_t, const int32_t*, int64_t, int32_t*, int32_t*, int64_t*);
int32_t grace_trie_count(int64_t, const uint16_t*, int32_t, int64_t*);
int32_t grace_trie_fill(int64_t, const uint16_t*, int32_t, const int64_t*, int32_t*, uint16_t*,
                        int64_t*);
int32_t grace_union_level(int64_t, const int64_t*, const int32_t*, const int32_t*, const uint64_t*,
                          int64_t, int32_t, int32_t, void**, int64_t*);
int32_t grace_union_level_take(const void*, int32_t*, uint64_t*);
int32_t grace_union_level_free(void*);
int32_t grace_bloom_rows(int64_t, const int64_t*, const int32_t*, const uint64_t*, uint64_t,
                         uint32_t, uint32_t, uint64_t*);
}

namespace {

using fuzz::below;
using fuzz::Random;
using Codes = std::vector<int32_t>;

// A vector whose heap block ends where its elements do.
template <typename T>
std::vector<T> exact(std::vector<T> values) {
  values.shrink_to_fit();
  return values;
}

struct Column {
  bool absent = false;
  std::vector<int64_t> offsets{0};
  std::vector<uint8_t> valid;
  Codes codes;

  GraceListColumn native() const {
    if (absent) return {nullptr, nullptr, nullptr};
    return {offsets.data(), valid.data(), codes.data()};
  }
  bool has(int64_t row) const { return !absent && valid[row] != 0; }
  Codes list(int64_t row) const {
    if (!has(row)) return {};
    return Codes(codes.begin() + offsets[row], codes.begin() + offsets[row + 1]);
  }
};

Column random_column(Random& random, int64_t rows, int32_t values) {
  Column column;
  column.absent = below(random, 8) == 0;
  for (int64_t row = 0; row < rows; ++row) {
    column.valid.push_back(below(random, 3) != 0);
    for (int64_t n = below(random, 5); n > 0; --n) {
      column.codes.push_back(
          static_cast<int32_t>(below(random, 50) == 0 ? -1 : below(random, values)));
    }
    column.offsets.push_back(static_cast<int64_t>(column.codes.size()));
  }
  column.offsets = exact(column.offsets);
  column.valid = exact(column.valid);
  column.codes = exact(column.codes);
  return column;
}

std::set<int32_t> as_set(const Codes& codes) { return {codes.begin(), codes.end()}; }

// What is left of a rule: false where the ad must be refused.
bool faulty(const Column& include, const Column& exclude, int64_t row) {
  const Codes in = include.list(row);
  const Codes ex = exclude.list(row);
  const auto negative = [](int32_t code) { return code < 0; };
  return std::any_of(in.begin(), in.end(), negative) ||
         std::any_of(ex.begin(), ex.end(), negative) || (include.has(row) && in.empty());
}

// The allowed values of an attribute, `values` standing for `other`.
std::set<int32_t> allowed(const GraceAttributeBits& a, const Column& include, const Column& exclude,
                          int64_t row) {
  std::set<int32_t> kept;
  const std::set<int32_t> in = as_set(include.list(row));
  const std::set<int32_t> ex = as_set(exclude.list(row));
  for (int32_t v = 0; v < a.values; ++v) {
    if ((!include.has(row) || in.count(v) != 0) && ex.count(v) == 0) kept.insert(v);
  }
  const bool other = !include.has(row) && (ex.empty() || a.missing_passes_exclude != 0);
  if (other) kept.insert(a.values);
  return kept;
}

struct Rule {
  std::vector<std::set<int32_t>> attributes;
  std::vector<std::pair<std::set<int32_t>, std::set<int32_t>>> sets;
  bool operator<(const Rule& o) const {
    return attributes != o.attributes ? attributes < o.attributes : sets < o.sets;
  }
};

void fuzz_rules(Random& random) {
  std::vector<GraceAttributeBits> attributes;
  int32_t bits = 0;
  for (int64_t n = below(random, 4); n > 0; --n) {
    const int32_t sizes[] = {1, 2, 63, 64, 65, 130};
    const int32_t values = sizes[below(random, 6)];
    attributes.push_back({bits, values, static_cast<int32_t>(below(random, 2))});
    bits += values + 1;
  }
  const int32_t words = std::max(1, (bits + 63) / 64);
  const auto num_sets = static_cast<int32_t>(below(random, 3));
  void* table = nullptr;
  EXPECT(grace_rules_new(words, attributes.data(), static_cast<int32_t>(attributes.size()),
                         num_sets, &table) == 0);
  std::map<Rule, int32_t> seen;
  for (int64_t batches = 1 + below(random, 3); batches > 0; --batches) {
    const int64_t rows = below(random, 40);
    std::vector<Column> columns;
    for (const GraceAttributeBits& a : attributes) {
      for (int side = 0; side < 2; ++side) columns.push_back(random_column(random, rows, a.values));
    }
    for (int32_t s = 0; s < 2 * num_sets; ++s) columns.push_back(random_column(random, rows, 6));
    std::vector<GraceListColumn> native;
    for (const Column& column : columns) native.push_back(column.native());
    std::vector<int32_t> rule_of(rows, 0);
    for (int32_t& rule : rule_of) rule = below(random, 10) == 0 ? -2 : 0;
    const std::vector<int32_t> before = rule_of;
    std::vector<int32_t> faults(2 * rows, 0);
    EXPECT(grace_rules_add(table, rows, native.data(), 1 + static_cast<int32_t>(below(random, 4)),
                           rule_of.data(), faults.data()) == 0);
    for (int64_t row = 0; row < rows; ++row) {
      Rule rule;
      bool refused = before[row] == -2;
      size_t c = 0;
      for (const GraceAttributeBits& a : attributes) {
        refused |= faulty(columns[c], columns[c + 1], row);
        rule.attributes.push_back(allowed(a, columns[c], columns[c + 1], row));
        refused |= rule.attributes.back().empty();
        c += 2;
      }
      for (int32_t s = 0; s < num_sets; ++s, c += 2) {
        refused |= faulty(columns[c], columns[c + 1], row);
        const std::set<int32_t> in = as_set(columns[c].list(row));
        const std::set<int32_t> ex = as_set(columns[c + 1].list(row));
        refused |= !in.empty() && std::includes(ex.begin(), ex.end(), in.begin(), in.end());
        rule.sets.emplace_back(in, ex);
      }
      EXPECT((rule_of[row] == -2) == refused);
      if (refused) continue;
      const auto [at, fresh] = seen.emplace(rule, rule_of[row]);
      EXPECT(at->second == rule_of[row]);
      EXPECT(!fresh || rule_of[row] == static_cast<int32_t>(seen.size()) - 1);
    }
  }
  std::vector<int64_t> sizes(2 + 2 * num_sets);
  EXPECT(grace_rules_sizes(table, sizes.data()) == 0);
  EXPECT(sizes[0] == static_cast<int64_t>(seen.size()));
  std::vector<int32_t> parts(sizes[0] * (1 + num_sets));
  std::vector<uint64_t> bitmasks(sizes[1] * words);
  EXPECT(grace_rules_take(table, parts.data(), bitmasks.data()) == 0);
  for (const auto& [rule, id] : seen) {
    const uint64_t* row = bitmasks.data() + int64_t{parts[int64_t{id} * (1 + num_sets)]} * words;
    for (size_t a = 0; a < attributes.size(); ++a) {
      for (int32_t v = 0; v <= attributes[a].values; ++v) {
        const int32_t bit = attributes[a].first_bit + v;
        EXPECT(((row[bit >> 6] >> (bit & 63)) & 1) == rule.attributes[a].count(v));
      }
    }
  }
  for (int32_t s = 0; s < num_sets; ++s) {
    std::vector<int64_t> offsets(sizes[2 + 2 * s] + 1);
    std::vector<int32_t> span(sizes[3 + 2 * s]);
    EXPECT(grace_rules_take_set(table, s, offsets.data(), span.data()) == 0);
    for (const auto& [rule, id] : seen) {
      const int32_t set_rule = parts[int64_t{id} * (1 + num_sets) + 1 + s];
      Codes expected{static_cast<int32_t>(rule.sets[s].first.size())};
      expected.insert(expected.end(), rule.sets[s].first.begin(), rule.sets[s].first.end());
      expected.insert(expected.end(), rule.sets[s].second.begin(), rule.sets[s].second.end());
      EXPECT(Codes(span.begin() + offsets[set_rule], span.begin() + offsets[set_rule + 1]) ==
             expected);
    }
  }
  EXPECT(grace_rules_free(table) == 0);
}

void fuzz_trie(Random& random) {
  const int64_t ads = 1 + below(random, 60);
  const auto length = static_cast<int32_t>(1 + below(random, 4));
  const int64_t vocab = below(random, 4) == 0 ? 65536 : 1 + below(random, 5);
  const int32_t threads = 1 + static_cast<int32_t>(below(random, 4));
  std::vector<uint16_t> tokens(ads * length);
  for (uint16_t& token : tokens) token = static_cast<uint16_t>(below(random, vocab));
  std::vector<int64_t> ids(ads);
  for (int64_t& id : ids) id = below(random, below(random, 2) == 0 ? 50 : int64_t{1} << 62);
  std::vector<int32_t> order(ads);
  EXPECT(grace_order_by_id(ads, ids.data(), threads, order.data()) == 0);
  for (int64_t i = 1; i < ads; ++i) {
    const bool ascending = ids[order[i - 1]] < ids[order[i]];
    EXPECT(ascending || (ids[order[i - 1]] == ids[order[i]] && order[i - 1] < order[i]));
  }
  EXPECT(grace_order_by_sid(ads, tokens.data(), length, threads, order.data()) == 0);
  std::vector<uint16_t> sorted;
  for (const int32_t row : order) {
    sorted.insert(sorted.end(), tokens.begin() + int64_t{row} * length,
                  tokens.begin() + int64_t{row + 1} * length);
  }
  sorted = exact(sorted);
  std::vector<std::set<std::vector<uint16_t>>> levels(length + 1);
  for (int64_t ad = 0; ad < ads; ++ad) {
    const auto sid = sorted.begin() + ad * length;
    for (int32_t t = 0; t <= length; ++t) levels[t].emplace(sid, sid + t);
  }
  std::vector<int64_t> counts(length + 1);
  EXPECT(grace_trie_count(ads, sorted.data(), length, counts.data()) == 0);
  int64_t nodes = 0;
  for (int32_t t = 0; t <= length; ++t) {
    EXPECT(counts[t] == static_cast<int64_t>(levels[t].size()));
    nodes += counts[t];
  }
  std::vector<int32_t> node_offsets(nodes - counts[length] + 1);
  std::vector<uint16_t> csr_tokens(nodes - 1);
  std::vector<int64_t> ad_offsets(counts[length] + 1);
  EXPECT(grace_trie_fill(ads, sorted.data(), length, counts.data(), node_offsets.data(),
                         csr_tokens.data(), ad_offsets.data()) == 0);
  EXPECT(ad_offsets.front() == 0 && ad_offsets.back() == ads && node_offsets.back() == nodes - 1);
  int64_t entry = 0;
  for (int32_t t = 1; t <= length; ++t) {
    for (const std::vector<uint16_t>& prefix : levels[t])
      EXPECT(csr_tokens[entry++] == prefix.back());
  }
}

void fuzz_unions(Random& random) {
  const auto words = static_cast<int32_t>(1 + below(random, 3));
  const int64_t table_rows = 1 + below(random, 6);
  std::vector<uint64_t> table(table_rows * words);
  for (uint64_t& word : table) word = random() & random() & random();
  const int64_t groups = below(random, 30);
  std::vector<int64_t> offsets{0};
  std::vector<int32_t> items;
  const int64_t places = 1 + below(random, 8);
  std::vector<int32_t> rows(places);
  for (int32_t& row : rows) row = static_cast<int32_t>(below(random, table_rows));
  const bool mapped = below(random, 2) == 0;
  for (int64_t group = 0; group < groups; ++group) {
    for (int64_t n = 1 + below(random, 4); n > 0; --n) {
      items.push_back(static_cast<int32_t>(below(random, mapped ? places : table_rows)));
    }
    offsets.push_back(static_cast<int64_t>(items.size()));
  }
  items = exact(items);
  offsets = exact(offsets);
  void* level = nullptr;
  int64_t distinct = 0;
  EXPECT(grace_union_level(groups, offsets.data(), items.data(), mapped ? rows.data() : nullptr,
                           table.data(), table_rows, words,
                           1 + static_cast<int32_t>(below(random, 5)), &level, &distinct) == 0);
  std::vector<int32_t> index(groups);
  std::vector<uint64_t> joined(distinct * words);
  EXPECT(grace_union_level_take(level, index.data(), joined.data()) == 0);
  EXPECT(grace_union_level_free(level) == 0);
  std::map<std::vector<uint64_t>, int32_t> seen;
  for (int64_t group = 0; group < groups; ++group) {
    std::vector<uint64_t> expected(words, 0);
    for (int64_t i = offsets[group]; i < offsets[group + 1]; ++i) {
      const int32_t row = mapped ? rows[items[i]] : items[i];
      for (int32_t w = 0; w < words; ++w) expected[w] |= table[int64_t{row} * words + w];
    }
    const int32_t id = seen.emplace(expected, static_cast<int32_t>(seen.size())).first->second;
    EXPECT(index[group] == id);
    EXPECT(std::equal(expected.begin(), expected.end(), joined.begin() + int64_t{id} * words));
  }
  EXPECT(distinct == static_cast<int64_t>(seen.size()));
}

void fuzz_first_use(Random& random) {
  const int64_t ids = 1 + below(random, 9);
  std::vector<int32_t> uses(below(random, 30));
  for (int32_t& use : uses) use = static_cast<int32_t>(below(random, ids));
  const bool broken = !uses.empty() && below(random, 8) == 0;
  if (broken) uses[below(random, static_cast<int64_t>(uses.size()))] = below(random, 2) ? -1 : 99;
  std::vector<int32_t> new_ids(ids);
  std::vector<int32_t> old_ids(ids);
  int64_t used = 0;
  const int32_t status = grace_first_use(static_cast<int64_t>(uses.size()), uses.data(), ids,
                                         new_ids.data(), old_ids.data(), &used);
  EXPECT((status != 0) == broken);
  if (broken) return;
  std::map<int32_t, int32_t> seen;
  for (const int32_t use : uses) seen.emplace(use, static_cast<int32_t>(seen.size()));
  EXPECT(used == static_cast<int64_t>(seen.size()));
  for (const auto& [old_id, new_id] : seen) {
    EXPECT(new_ids[old_id] == new_id && old_ids[new_id] == old_id);
  }
}

}  // namespace

int main(int argc, char** argv) {
  return fuzz::run("fuzz_builder", argc, argv, [](Random& random) {
    fuzz_rules(random);
    fuzz_trie(random);
    fuzz_unions(random);
    fuzz_first_use(random);
  });
}
