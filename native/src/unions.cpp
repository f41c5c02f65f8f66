// Matcher rows of one level: the OR of a node's items, deduplicated, ids by first use in node
// order.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "grace/abi.h"
#include "grace/interner.h"
#include "grace/match.h"
#include "grace/parallel.h"

namespace {

using grace::Interner;

struct Items {
  const int64_t* offsets;  // [groups + 1]
  const int32_t* items;    // [...] item -> row, or item -> place in `rows` when that is given
  const int32_t* rows;     // [...] or null
  const uint64_t* table;   // [table rows, words]
  int64_t table_rows;
  int32_t words;

  int32_t row(int64_t i) const { return rows == nullptr ? items[i] : rows[items[i]]; }
};

struct Level {
  std::vector<int32_t> index;   // [groups]
  std::vector<uint64_t> table;  // [rows, words]
};

// The rows of one run of groups. Most groups hold one item, or several with the same row: those
// answer from `same` without hashing.
Interner<uint64_t> intern_run(const Items& from, grace::Range run, int32_t* index) {
  Interner<uint64_t> rows;
  std::vector<int32_t> same(from.table_rows, Interner<uint64_t>::kAbsent);
  std::vector<uint64_t> joined(from.words);
  for (int64_t group = run.begin; group < run.end; ++group) {
    const int64_t begin = from.offsets[group];
    const int64_t end = from.offsets[group + 1];
    const int32_t first = from.row(begin);
    bool mixed = false;
    for (int64_t i = begin + 1; i < end && !mixed; ++i) mixed = from.row(i) != first;
    if (!mixed && same[first] >= 0) {
      index[group] = same[first];
      continue;
    }
    std::copy_n(from.table + int64_t{first} * from.words, from.words, joined.begin());
    for (int64_t i = begin + 1; i < end; ++i) {
      const uint64_t* row = from.table + int64_t{from.row(i)} * from.words;
      for (int32_t w = 0; w < from.words; ++w) joined[w] |= row[w];
    }
    index[group] = rows.find_or_add(joined.data(), from.words);
    if (!mixed) same[first] = index[group];
  }
  return rows;
}

void union_level(int64_t groups, const Items& from, int32_t threads, Level& level) {
  const int64_t runs = std::max<int64_t>(1, std::min<int64_t>(threads, groups));
  level.index.resize(groups);
  std::vector<Interner<uint64_t>> local(runs);
  grace::parallel_tasks(runs, threads, [&](int64_t r) {
    local[r] = intern_run(from, grace::chunk_of(groups, runs, r), level.index.data());
  });
  // Runs are joined in order, so ids follow first use over all groups, whatever the number of runs.
  for (int64_t r = 1; r < runs; ++r) {
    std::vector<int32_t> joined_id(local[r].size());
    for (int32_t id = 0; id < local[r].size(); ++id) {
      joined_id[id] = local[0].find_or_add(local[r].span(id), from.words, local[r].hash(id));
    }
    local[r] = Interner<uint64_t>();
    const grace::Range run = grace::chunk_of(groups, runs, r);
    for (int64_t group = run.begin; group < run.end; ++group) {
      level.index[group] = joined_id[level.index[group]];
    }
  }
  level.table.assign(local[0].words(), local[0].words() + local[0].num_words());
}

}  // namespace

// Every group holds at least one item; `level` receives a handle for grace_union_level_take.
GRACE_API int32_t grace_union_level(int64_t groups, const int64_t* offsets, const int32_t* items,
                                    const int32_t* rows, const uint64_t* table, int64_t table_rows,
                                    int32_t words, int32_t threads, void** level,
                                    int64_t* level_rows) {
  return grace::guarded([&] {
    auto made = std::make_unique<Level>();
    union_level(groups, {offsets, items, rows, table, table_rows, words}, threads, *made);
    *level_rows = static_cast<int64_t>(made->table.size()) / words;
    *level = made.release();
  });
}

// Copies index int32 [groups] and table uint64 [rows, words] out.
GRACE_API int32_t grace_union_level_take(const void* level, int32_t* index, uint64_t* table) {
  return grace::guarded([&] {
    const Level& made = *static_cast<const Level*>(level);
    std::copy(made.index.begin(), made.index.end(), index);
    std::copy(made.table.begin(), made.table.end(), table);
  });
}

GRACE_API int32_t grace_union_level_free(void* level) {
  return grace::guarded([&] { delete static_cast<Level*>(level); });
}

// table uint64 [rules, bits / 64]: the Bloom bits of each rule's included values, or of the
// reserved element where it includes none.
GRACE_API int32_t grace_bloom_rows(int64_t rules, const int64_t* offsets, const int32_t* values,
                                   const uint64_t* value_hashes, uint64_t star_hash, uint32_t bits,
                                   uint32_t hashes, uint64_t* table) {
  return grace::guarded([&] {
    const grace::BloomShape shape{bits, hashes};
    const int64_t words = bits / 64;
    std::fill(table, table + rules * words, 0);
    for (int64_t rule = 0; rule < rules; ++rule) {
      uint64_t* row = table + rule * words;
      const auto add = [&](uint64_t hash) {
        for (uint32_t i = 0; i < hashes; ++i) {
          const uint32_t bit = grace::bloom_bit(hash, i, shape);
          row[bit >> 6] |= uint64_t{1} << (bit & 63);
        }
      };
      for (int64_t i = offsets[rule]; i < offsets[rule + 1]; ++i) add(value_hashes[values[i]]);
      if (offsets[rule] == offsets[rule + 1]) add(star_hash);
    }
  });
}
