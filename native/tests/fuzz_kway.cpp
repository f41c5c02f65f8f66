// Random nodes for the k-way matchers, checked by slow code straight from the definition.
//
// Buffers are exact-size heap blocks, so that the sanitizers see every read beyond them.
#include <algorithm>
#include <bitset>
#include <cstdint>
#include <map>
#include <vector>

#include "fuzz_driver.h"

extern "C" {
int32_t grace_kway_level(int64_t, const int64_t*, const int32_t*, const uint64_t*, int64_t, int32_t,
                         int32_t, int32_t, int64_t, int64_t, int32_t, void**, int64_t*);
int32_t grace_kway_level_take(const void*, int32_t, int32_t*, int32_t*, uint64_t*);
int32_t grace_kway_level_free(void*);
}

namespace {

using fuzz::below;
using fuzz::chance;
using fuzz::Random;
using Row = std::vector<uint64_t>;

struct Case {
  int32_t words, width, k_max;
  int64_t bits, fill_target;
  std::vector<Row> rows;
  std::vector<int64_t> offsets{0};
  std::vector<int32_t> sids;

  int64_t nodes() const { return static_cast<int64_t>(offsets.size()) - 1; }
};

Case random_case(Random& random) {
  Case c;
  c.words = static_cast<int32_t>(1 + below(random, 4));
  c.bits = int64_t{64} * c.words;
  c.width = chance(random, 50) ? 0 : static_cast<int32_t>(1 + below(random, 9));
  c.k_max = 1 << below(random, 6);
  c.fill_target = below(random, 1'000'001);
  // Few bits make ties, and rows that contain each other; many distinct rows fill all partitions.
  const int64_t bits_per_row = 1 + below(random, 6);
  const int64_t few_bits = chance(random, 50) ? c.bits : 8;
  for (int64_t n = 1 + below(random, chance(random, 30) ? 200 : 12); n > 0; --n) {
    Row row(c.words, 0);
    for (int64_t b = below(random, 20) == 0 ? 0 : bits_per_row; b > 0; --b) {
      const int64_t bit = below(random, few_bits);
      row[bit / 64] |= uint64_t{1} << (bit % 64);
    }
    row.shrink_to_fit();
    c.rows.push_back(row);
  }
  const int64_t most = chance(random, 20) ? 300 : 9;
  for (int64_t n = 1 + below(random, 20); n > 0; --n) {
    for (int64_t s = 1 + below(random, most); s > 0; --s) {
      c.sids.push_back(static_cast<int32_t>(below(random, static_cast<int64_t>(c.rows.size()))));
    }
    c.offsets.push_back(static_cast<int64_t>(c.sids.size()));
  }
  c.sids.shrink_to_fit();
  c.offsets.shrink_to_fit();
  return c;
}

int64_t popcount(const Row& row) {
  int64_t count = 0;
  for (const uint64_t word : row) count += static_cast<int64_t>(std::bitset<64>(word).count());
  return count;
}

Row joined(Row one, const Row& other) {
  for (size_t w = 0; w < one.size(); ++w) one[w] |= other[w];
  return one;
}

// The partitions of one node that have SIDs.
std::vector<Row> assigned(const Case& c, int64_t node, int32_t k) {
  std::vector<Row> rows(k, Row(c.words, 0));
  std::vector<bool> used(k, false);
  for (int64_t i = c.offsets[node]; i < c.offsets[node + 1]; ++i) {
    const Row& sid = c.rows[c.sids[i]];
    int32_t best = 0;
    for (int32_t p = 1; p < k; ++p) {
      if (popcount(joined(rows[p], sid)) < popcount(joined(rows[best], sid))) best = p;
    }
    rows[best] = joined(rows[best], sid);
    used[best] = true;
  }
  std::vector<Row> stored;
  for (int32_t p = 0; p < k; ++p) {
    if (used[p]) stored.push_back(rows[p]);
  }
  return stored;
}

std::vector<Row> expected_of(const Case& c, int64_t node) {
  if (c.width > 0) {
    std::vector<Row> rows = assigned(c, node, c.width);
    rows.resize(c.width, Row(c.words, 0));
    return rows;
  }
  for (int32_t k = 1;; k *= 2) {
    std::vector<Row> rows = assigned(c, node, k);
    int64_t set = 0;
    for (const Row& row : rows) set += popcount(row);
    const int64_t room = c.bits * static_cast<int64_t>(rows.size());
    if (set * 1'000'000 <= c.fill_target * room || k == c.k_max) return rows;
  }
}

std::vector<uint64_t> table_of(const Case& c) {
  std::vector<uint64_t> table;
  for (const Row& row : c.rows) table.insert(table.end(), row.begin(), row.end());
  table.shrink_to_fit();
  return table;
}

int32_t make(const Case& c, const std::vector<uint64_t>& table, int32_t threads, void** level,
             int64_t* sizes) {
  return grace_kway_level(c.nodes(), c.offsets.data(), c.sids.data(), table.data(),
                          static_cast<int64_t>(c.rows.size()), c.words, c.width, c.k_max, c.bits,
                          c.fill_target, threads, level, sizes);
}

void check_level(Random& random, const Case& c) {
  void* level = nullptr;
  int64_t sizes[2];
  EXPECT(make(c, table_of(c), static_cast<int32_t>(1 + below(random, 5)), &level, sizes) == 0);
  std::vector<int32_t> counts(c.nodes());
  std::vector<int32_t> index(sizes[1]);
  std::vector<uint64_t> table(sizes[0] * c.words);
  EXPECT(grace_kway_level_take(level, c.width, counts.data(), index.data(), table.data()) == 0);
  EXPECT(grace_kway_level_free(level) == 0);
  std::map<Row, int32_t> seen;
  size_t at = 0;
  for (int64_t node = 0; node < c.nodes(); ++node) {
    const std::vector<Row> expected = expected_of(c, node);
    EXPECT(counts[node] == static_cast<int32_t>(expected.size()));
    for (const Row& row : expected) {
      const int32_t id = seen.emplace(row, static_cast<int32_t>(seen.size())).first->second;
      EXPECT(at < index.size() && index[at] == id);
      EXPECT(std::equal(row.begin(), row.end(), table.begin() + int64_t{id} * c.words));
      ++at;
    }
  }
  EXPECT(at == index.size() && sizes[0] == static_cast<int64_t>(seen.size()));
}

void check_refusal(Random& random, Case c) {
  void* level = nullptr;
  int64_t sizes[2];
  const std::vector<uint64_t> table = table_of(c);
  if (chance(random, 50)) {
    const int32_t wrong[] = {-1, static_cast<int32_t>(c.rows.size()), INT32_MAX, INT32_MIN};
    c.sids[below(random, static_cast<int64_t>(c.sids.size()))] = wrong[below(random, 4)];
  } else {
    const int64_t node = below(random, c.nodes());
    c.offsets[node + 1] = c.offsets[node];
  }
  EXPECT(make(c, table, 2, &level, sizes) != 0);
}

}  // namespace

int main(int argc, char** argv) {
  return fuzz::run("fuzz_kway", argc, argv, [](Random& random) {
    const Case c = random_case(random);
    check_level(random, c);
    check_refusal(random, c);
  });
}
