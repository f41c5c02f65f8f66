// The rows of a child entry's k-way matcher that can decide.
//
// A user who passes a row passes every row that contains it. So an entry never needs a row that
// another of its rows contains, such as that of an empty partition. If a row contains the reserved
// element, which every user has, the entry needs no other row.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "grace/abi.h"
#include "grace/match.h"
#include "grace/parallel.h"

namespace {

constexpr int64_t kEntriesPerTask = 1 << 14;
// A row is compared with the first kept rows, up to this number. Matchers have fewer in practice,
// and an unneeded row that is kept costs only time.
constexpr size_t kMostCompared = 64;

struct Rows {
  const uint64_t* table;
  const uint8_t* star;  // null: bitmask rows
  int32_t words;

  // Returns whether all bits of `row` are bits of `other`.
  bool contained(int32_t row, int32_t other) const {
    const uint64_t* bits = table + int64_t{row} * words;
    const uint64_t* others = table + int64_t{other} * words;
    for (int32_t w = 0; w < words; ++w) {
      if (bits[w] != 0 && (bits[w] & ~others[w]) != 0) return false;
    }
    return true;
  }
};

struct Task {
  std::vector<int32_t> counts;  // of each entry
  std::vector<int32_t> ids;
};

struct Needed {
  std::vector<Task> tasks;
};

// Appends the needed rows of an entry.
void keep(const Rows& rows, const int32_t* ids, int64_t count, std::vector<int32_t>& kept) {
  const size_t begin = kept.size();
  if (rows.star != nullptr) {
    for (int64_t i = 0; i < count; ++i) {
      if (rows.star[ids[i]] != 0) return kept.push_back(ids[i]);
    }
  }
  for (int64_t i = 0; i < count; ++i) {
    const int32_t id = ids[i];
    if (i > 0 && id == ids[i - 1]) continue;
    const auto first = kept.begin() + static_cast<int64_t>(begin);
    const auto last = first + static_cast<int64_t>(std::min(kept.size() - begin, kMostCompared));
    if (std::any_of(first, last, [&](int32_t k) { return k == id || rows.contained(id, k); })) {
      continue;
    }
    const auto stay = std::remove_if(first, last, [&](int32_t k) { return rows.contained(k, id); });
    kept.erase(stay, last);
    kept.push_back(id);
  }
}

}  // namespace

// `star` is uint8 [rows] of a set's rows, or null. `needed` receives a handle for
// grace_needed_rows_take, and num_ids the number of ids to take.
GRACE_API int32_t grace_needed_rows(int32_t threads, int64_t entries,
                                    const GraceMatcherIds* matcher, const uint64_t* table,
                                    int32_t words, const uint8_t* star, void** needed,
                                    int64_t* num_ids) {
  return grace::guarded([&] {
    const Rows rows{table, star, words};
    auto made = std::make_unique<Needed>();
    made->tasks.resize((entries + kEntriesPerTask - 1) / kEntriesPerTask);
    grace::parallel_tasks(static_cast<int64_t>(made->tasks.size()), threads, [&](int64_t t) {
      Task& task = made->tasks[t];
      const int64_t begin = t * kEntriesPerTask;
      const int64_t end = std::min(entries, begin + kEntriesPerTask);
      task.counts.reserve(end - begin);
      task.ids.reserve(end - begin);
      for (int64_t entry = begin; entry < end; ++entry) {
        const grace::IdRange of = grace::ids_of(*matcher, entry);
        grace::require(of.begin < of.end, "needed_rows: an entry without rows");
        const size_t before = task.ids.size();
        keep(rows, matcher->ids + of.begin, of.end - of.begin, task.ids);
        task.counts.push_back(static_cast<int32_t>(task.ids.size() - before));
      }
    });
    *num_ids = 0;
    for (const Task& task : made->tasks) *num_ids += static_cast<int64_t>(task.ids.size());
    *needed = made.release();
  });
}

// Copies out: the ids of entry j are ids[offsets[j]] .. ids[offsets[j + 1]]; offsets int32
// [entries + 1], ids int32 [num_ids], at most 2^31 - 1 of them.
GRACE_API int32_t grace_needed_rows_take(const void* needed, int32_t* offsets, int32_t* ids) {
  return grace::guarded([&] {
    int32_t total = 0;
    for (const Task& task : static_cast<const Needed*>(needed)->tasks) {
      ids = std::copy(task.ids.begin(), task.ids.end(), ids);
      for (const int32_t count : task.counts) {
        *offsets++ = total;
        total += count;
      }
    }
    *offsets = total;
  });
}

GRACE_API int32_t grace_needed_rows_free(void* needed) {
  return grace::guarded([&] { delete static_cast<Needed*>(needed); });
}
