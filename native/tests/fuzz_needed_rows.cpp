// Random k-way matchers, whose needed rows are checked by their definition, row against row.
//
// Buffers are exact-size heap blocks, so that the sanitizers see every read beyond them.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "fuzz_driver.h"
#include "grace/matcher_ids.h"

extern "C" {
int32_t grace_needed_rows(int32_t, int64_t, const GraceMatcherIds*, const uint64_t*, int32_t,
                          const uint8_t*, void**, int64_t*);
int32_t grace_needed_rows_take(const void*, int32_t*, int32_t*);
int32_t grace_needed_rows_free(void*);
}

namespace {

using fuzz::below;
using fuzz::chance;
using fuzz::Random;

template <typename T>
std::vector<T> block(int64_t size) {
  std::vector<T> values;
  values.reserve(static_cast<size_t>(size));
  values.resize(static_cast<size_t>(size));
  return values;
}

struct Case {
  int32_t words;
  bool is_set;
  std::vector<uint64_t> table;
  std::vector<uint8_t> star;
  std::vector<int32_t> ids, offsets;
  std::vector<GraceIdLevel> levels;
  std::vector<std::vector<int32_t>> of_entry;

  int64_t entries() const { return static_cast<int64_t>(of_entry.size()); }

  bool contains(int32_t id, int32_t other) const {
    for (int32_t w = 0; w < words; ++w) {
      const uint64_t row = table[int64_t{other} * words + w];
      if ((row & table[int64_t{id} * words + w]) != row) return false;
    }
    return true;
  }
};

Case random_case(Random& random) {
  Case c;
  c.words = static_cast<int32_t>(1 + below(random, 4));
  c.is_set = chance(random, 50);
  const int64_t rows = 1 + below(random, 40);
  c.table = block<uint64_t>(rows * c.words);
  const bool sparse = chance(random, 50);
  for (uint64_t& word : c.table) {
    word = sparse ? uint64_t{1} << below(random, 3) : below(random, 8);
    if (chance(random, 20)) word = 0;
  }
  c.star = block<uint8_t>(rows);
  for (uint8_t& star : c.star) star = chance(random, 5);
  const bool dynamic = chance(random, 50);
  c.of_entry.resize(1 + below(random, chance(random, 2) ? 40000 : 60));
  int64_t total = 0, width = 1;
  for (int64_t entry = 0; entry < c.entries(); ++entry) {
    if (dynamic) {
      c.offsets.push_back(static_cast<int32_t>(total));
      width = 1 + below(random, 9);
    } else if (entry == 0 || chance(random, 10)) {
      width = 1 + below(random, 20);
      c.levels.push_back({entry, total, width});
    }
    for (int64_t i = 0; i < width; ++i) {
      c.of_entry[entry].push_back(static_cast<int32_t>(below(random, rows)));
    }
    total += width;
  }
  if (dynamic) c.offsets.push_back(static_cast<int32_t>(total));
  for (const auto& each : c.of_entry) c.ids.insert(c.ids.end(), each.begin(), each.end());
  c.ids.shrink_to_fit();
  c.offsets.shrink_to_fit();
  c.levels.shrink_to_fit();
  return c;
}

std::vector<int32_t> needed_of(const Case& c, const std::vector<int32_t>& ids) {
  std::vector<int32_t> kept;
  if (c.is_set) {
    for (const int32_t id : ids) {
      if (c.star[id] != 0) return {id};
    }
  }
  for (size_t i = 0; i < ids.size(); ++i) {
    bool needed = true;
    for (size_t j = 0; j < ids.size() && needed; ++j) {
      if (i == j || !c.contains(ids[j], ids[i])) continue;
      needed = c.contains(ids[i], ids[j]) && i < j;
    }
    if (needed) kept.push_back(ids[i]);
  }
  return kept;
}

void check(Random& random) {
  const Case c = random_case(random);
  const bool dynamic = !c.offsets.empty();
  const GraceMatcherIds matcher{c.ids.data(), dynamic ? c.offsets.data() : nullptr,
                                dynamic ? nullptr : c.levels.data(),
                                static_cast<int64_t>(c.levels.size())};
  void* needed = nullptr;
  int64_t num_ids = 0;
  EXPECT(grace_needed_rows(static_cast<int32_t>(1 + below(random, 4)), c.entries(), &matcher,
                           c.table.data(), c.words, c.is_set ? c.star.data() : nullptr, &needed,
                           &num_ids) == 0);
  auto offsets = block<int32_t>(c.entries() + 1);
  auto ids = block<int32_t>(num_ids);
  EXPECT(grace_needed_rows_take(needed, offsets.data(), ids.data()) == 0);
  EXPECT(grace_needed_rows_free(needed) == 0);
  EXPECT(offsets[0] == 0 && offsets.back() == num_ids);
  for (int64_t entry = 0; entry < c.entries(); ++entry) {
    const std::vector<int32_t> got(ids.begin() + offsets[entry], ids.begin() + offsets[entry + 1]);
    EXPECT(got == needed_of(c, c.of_entry[entry]));
  }
}

}  // namespace

int main(int argc, char** argv) { return fuzz::run("fuzz_needed_rows", argc, argv, check); }
