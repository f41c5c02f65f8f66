// The rows of the matchers of one level's nodes. A node's items, such as the SIDs below it in their
// order, go to one of k partitions, each to the one with the smallest popcount after the union,
// ties to the lowest index. The partitions' rows are deduplicated, ids by first use in (node,
// partition) order. In mode `union`, k is 1.
//
// Two facts make it quick. Partitions only grow, so a row that comes again has the same answer as
// long as the partition that took it has not changed, whatever became of the others. And while a
// partition is empty no other costs less, so that the first one inside the row is the answer, and a
// larger k would change nothing.
#include <algorithm>
#include <limits>
#include <memory>
#include <numeric>
#include <vector>

#include "grace/abi.h"
#include "grace/interner.h"
#include "grace/parallel.h"

namespace {

using grace::Interner;
using grace::Range;

constexpr int32_t kNoRow = -1;
constexpr int64_t kFillUnit = 1'000'000;
constexpr int64_t kFewItems = 64;  // below this, remembering rows costs more than it saves
constexpr int64_t kRunsPerThread = 8;

struct Rows {
  const uint64_t* table;  // [count, words]
  int64_t count;
  int32_t words;

  const uint64_t* at(int64_t row) const { return table + row * words; }
};

struct Spec {
  int32_t width;  // static: ids per node; 0: dynamic
  int32_t k_max;
  int64_t bits;         // that a row may set
  int64_t fill_target;  // in millionths
};

// The partitions of one node.
class Partitions {
 public:
  Partitions(const Rows& rows, int32_t most)
      : rows_(rows), words_(rows.words), parts_(most), bits_(int64_t{most} * rows.words) {}

  int32_t used() const { return used_; }
  const uint64_t* bits(int32_t p) const { return bits_.data() + int64_t{p} * words_; }
  // A table row with the same bits, if one is known.
  int32_t same_row(int32_t p) const { return parts_[p].same_row; }

  int64_t popcount() const {
    int64_t sum = 0;
    for (int32_t p = 0; p < used_; ++p) sum += parts_[p].popcount;
    return sum;
  }

  // Assigns items, given as their table rows, to k partitions.
  void assign(const int32_t* items, int64_t count, int32_t k) {
    used_ = 0;
    const bool remember = k > 1 && count >= kFewItems;
    if (remember && memory_.empty()) memory_.resize(rows_.count);
    ++call_;
    for (int64_t i = 0; i < count; ++i) {
      Taken* taken = remember ? &memory_[items[i]] : nullptr;
      const bool again = taken != nullptr && taken->call == call_;
      if (again && parts_[taken->part].version == taken->version) continue;
      const uint64_t* row = rows_.at(items[i]);
      const int32_t p = used_ < k ? first_inside(row) : smallest(row, again ? taken->part : -1);
      join(p, row, items[i]);
      if (remember) *taken = {call_, p, parts_[p].version};
    }
  }

 private:
  struct Part {
    int64_t popcount;
    int32_t version;  // counts its changes
    int32_t same_row;
  };

  // Which partition took a row, and how it was then.
  struct Taken {
    int64_t call = 0;
    int32_t part = 0;
    int32_t version = 0;
  };

  // The first partition without a bit outside the row; else the first empty one.
  int32_t first_inside(const uint64_t* row) const {
    for (int32_t p = 0; p < used_; ++p) {
      const uint64_t* part = bits(p);
      int32_t w = 0;
      while (w < words_ && (part[w] & ~row[w]) == 0) ++w;
      if (w == words_) return p;
    }
    return used_;
  }

  // `holder` contains the row already, or is -1.
  int32_t smallest(const uint64_t* row, int32_t holder) const {
    if (used_ == 1) return 0;
    int64_t least = std::numeric_limits<int64_t>::max();
    int32_t best = used_;
    if (holder >= 0) {
      least = parts_[holder].popcount;
      best = holder;
    }
    for (int32_t p = 0; p < used_; ++p) {
      // A union has at least the bits that its partition has.
      const int64_t most = p < best ? least : least - 1;
      if (parts_[p].popcount > most) continue;
      const uint64_t* part = bits(p);
      int64_t joined = 0;
      for (int32_t w = 0; w < words_; ++w) joined += __builtin_popcountll(part[w] | row[w]);
      if (joined > most) continue;
      least = joined;
      best = p;
    }
    return best;
  }

  void join(int32_t p, const uint64_t* row, int32_t id) {
    uint64_t* part = bits_.data() + int64_t{p} * words_;
    if (p == used_) {
      ++used_;
      std::copy_n(row, words_, part);
      parts_[p] = {count_bits(row), 0, id};
      return;
    }
    uint64_t added = 0;
    uint64_t beyond = 0;  // bits of the partition that the row has not
    for (int32_t w = 0; w < words_; ++w) {
      added |= row[w] & ~part[w];
      beyond |= part[w] & ~row[w];
      part[w] |= row[w];
    }
    if (added == 0) return;
    parts_[p] = {count_bits(part), parts_[p].version + 1, beyond == 0 ? id : kNoRow};
  }

  int64_t count_bits(const uint64_t* row) const {
    int64_t count = 0;
    for (int32_t w = 0; w < words_; ++w) count += __builtin_popcountll(row[w]);
    return count;
  }

  const Rows rows_;
  const int32_t words_;
  int32_t used_ = 0;
  std::vector<Part> parts_;
  std::vector<uint64_t> bits_;
  int64_t call_ = 0;
  std::vector<Taken> memory_;  // [table rows], made for the first node with many items
};

void partition(const int32_t* items, int64_t count, const Spec& spec, Partitions& made) {
  if (spec.width > 0) return made.assign(items, count, spec.width);
  for (int32_t k = 1; k <= spec.k_max; k *= 2) {
    made.assign(items, count, k);
    if (made.used() < k) return;
    if (made.popcount() * kFillUnit <= spec.fill_target * spec.bits * made.used()) return;
  }
}

// The partitions of a run of nodes. An id names a row of the table given, or, as -1 - id, a row
// that was joined here.
struct Run {
  std::vector<int32_t> ids;
  Interner<uint64_t> joined;
};

struct Level {
  std::vector<int32_t> counts;  // [nodes] partitions that have items
  std::vector<Run> runs;        // with ids of `rows`, once they are merged
  std::vector<Range> ranges;    // the nodes of each run
  Interner<uint64_t> rows;
  int32_t zeros = kNoRow;  // static: the row of empty partitions
};

// Borders of runs with about the same number of items.
std::vector<Range> cut(int64_t nodes, const int64_t* offsets, int64_t runs) {
  std::vector<Range> ranges;
  const int64_t items = offsets[nodes] - offsets[0];
  int64_t begin = 0;
  for (int64_t r = 0; r < runs && begin < nodes; ++r) {
    const int64_t goal = offsets[0] + grace::chunk_of(items, runs, r).end;
    const int64_t* border = std::lower_bound(offsets + begin + 1, offsets + nodes, goal);
    const int64_t end = r + 1 == runs ? nodes : border - offsets;
    ranges.push_back({begin, end});
    begin = end;
  }
  return ranges;
}

void fill_run(const int64_t* offsets, const int32_t* items, const Rows& rows, const Spec& spec,
              Range nodes, int32_t* counts, Run& run) {
  Partitions made(rows, std::max(spec.width, spec.k_max));
  run.ids.reserve(nodes.end - nodes.begin);
  for (int64_t node = nodes.begin; node < nodes.end; ++node) {
    partition(items + offsets[node], offsets[node + 1] - offsets[node], spec, made);
    counts[node] = made.used();
    for (int32_t p = 0; p < made.used(); ++p) {
      int32_t id = made.same_row(p);
      if (id == kNoRow) {
        id = -1 - run.joined.find_or_add(made.bits(p), rows.words);
      }
      run.ids.push_back(id);
    }
  }
}

// Numbers the rows by first use, node by node, whatever the runs were.
void merge(const Rows& rows, const Spec& spec, Level& level) {
  const std::vector<uint64_t> zeros(rows.words, 0);
  std::vector<int32_t> of_table(rows.count, kNoRow);
  std::vector<int32_t> of_joined;
  for (size_t r = 0; r < level.runs.size(); ++r) {
    Run& run = level.runs[r];
    of_joined.assign(run.joined.size(), kNoRow);
    int32_t* id = run.ids.data();
    for (int64_t node = level.ranges[r].begin; node < level.ranges[r].end; ++node) {
      for (const int32_t* end = id + level.counts[node]; id < end; ++id) {
        int32_t& known = *id >= 0 ? of_table[*id] : of_joined[-1 - *id];
        if (known == kNoRow) {
          const uint64_t* row = *id >= 0 ? rows.at(*id) : run.joined.span(-1 - *id);
          known = level.rows.find_or_add(row, rows.words);
        }
        *id = known;
      }
      if (level.counts[node] < spec.width && level.zeros == kNoRow) {
        level.zeros = level.rows.find_or_add(zeros.data(), rows.words);
      }
    }
    run.joined = Interner<uint64_t>();
  }
}

void partition_level(int64_t nodes, const int64_t* offsets, const int32_t* items, const Rows& rows,
                     const Spec& spec, int32_t threads, Level& level) {
  level.counts.resize(nodes);
  level.ranges = cut(nodes, offsets, threads > 1 ? kRunsPerThread * threads : 1);
  level.runs.resize(level.ranges.size());
  const auto size = [&](int64_t r) {
    return offsets[level.ranges[r].end] - offsets[level.ranges[r].begin];
  };
  // The longest first, so that no thread begins one when the others have ended.
  std::vector<int64_t> order(level.runs.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return size(a) > size(b); });
  grace::parallel_tasks(static_cast<int64_t>(order.size()), threads, [&](int64_t i) {
    const int64_t r = order[i];
    fill_run(offsets, items, rows, spec, level.ranges[r], level.counts.data(), level.runs[r]);
  });
  merge(rows, spec, level);
}

}  // namespace

// The items of node n are items[offsets[n]] .. items[offsets[n + 1]], rows of table uint64
// [table_rows, words]; every node has one. `width` partitions for every node or, if that is 0, 1,
// 2, 4 .. k_max until at most fill_target millionths of their `bits` are set. `level` receives a
// handle for grace_matcher_level_take; sizes int64 [2] the numbers of rows and ids to take.
GRACE_API int32_t grace_matcher_level(int64_t nodes, const int64_t* offsets, const int32_t* items,
                                      const uint64_t* table, int64_t table_rows, int32_t words,
                                      int32_t width, int32_t k_max, int64_t bits,
                                      int64_t fill_target, int32_t threads, void** level,
                                      int64_t* sizes) {
  return grace::guarded([&] {
    grace::require(words >= 1, "matcher_level: no word");
    grace::require(width >= 1 || (width == 0 && k_max >= 1), "matcher_level: no partition");
    for (int64_t node = 0; node < nodes; ++node) {
      grace::require(offsets[node] < offsets[node + 1], "matcher_level: a node without items");
    }
    for (int64_t i = offsets[0]; i < offsets[nodes]; ++i) {
      grace::require(items[i] >= 0 && items[i] < table_rows, "matcher_level: a row out of range");
    }
    auto made = std::make_unique<Level>();
    const Spec spec{width, width > 0 ? 0 : k_max, bits, fill_target};
    partition_level(nodes, offsets, items, {table, table_rows, words}, spec, threads, *made);
    sizes[0] = made->rows.size();
    sizes[1] = width > 0 ? nodes * width
                         : std::accumulate(made->counts.begin(), made->counts.end(), int64_t{0});
    *level = made.release();
  });
}

// Copies out: counts int32 [nodes] of ids, index int32 [ids], table uint64 [rows, words]. With a
// `width`, each node has `width` ids.
GRACE_API int32_t grace_matcher_level_take(const void* level, int32_t width, int32_t* counts,
                                           int32_t* index, uint64_t* table) {
  return grace::guarded([&] {
    const Level& made = *static_cast<const Level*>(level);
    for (size_t r = 0; r < made.runs.size(); ++r) {
      const int32_t* id = made.runs[r].ids.data();
      for (int64_t node = made.ranges[r].begin; node < made.ranges[r].end; ++node) {
        counts[node] = std::max(width, made.counts[node]);
        index = std::copy_n(id, made.counts[node], index);
        index = std::fill_n(index, counts[node] - made.counts[node], made.zeros);
        id += made.counts[node];
      }
    }
    std::copy_n(made.rows.words(), made.rows.num_words(), table);
  });
}

GRACE_API int32_t grace_matcher_level_free(void* level) {
  return grace::guarded([&] { delete static_cast<Level*>(level); });
}
