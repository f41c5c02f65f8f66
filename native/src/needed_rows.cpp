// The rows of a child entry's k-way matcher that can decide: kernels/decode/needed_rows.py says why
// others cannot.
#include <algorithm>
#include <vector>

#include "grace/abi.h"
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

// Writes the needed rows of an entry to `kept`, which must be empty.
void keep(const Rows& rows, const int32_t* ids, int64_t count, std::vector<int32_t>& kept) {
  if (rows.star != nullptr) {
    for (int64_t i = 0; i < count; ++i) {
      if (rows.star[ids[i]] != 0) return kept.push_back(ids[i]);
    }
  }
  for (int64_t i = 0; i < count; ++i) {
    const int32_t id = ids[i];
    if (i > 0 && id == ids[i - 1]) continue;
    const auto first = kept.begin();
    const auto last = first + static_cast<int64_t>(std::min(kept.size(), kMostCompared));
    if (std::any_of(first, last, [&](int32_t k) { return k == id || rows.contained(id, k); })) {
      continue;
    }
    const auto stay = std::remove_if(first, last, [&](int32_t k) { return rows.contained(k, id); });
    kept.erase(stay, last);
    kept.push_back(id);
  }
}

}  // namespace

// `ids` is a copy of the matcher's ids: those of entry j are ids[borders[j]] .. ids[borders[j +
// 1]]. The call overwrites it with the needed ones, and writes their borders to offsets int32
// [entries + 1].
// `star` is uint8 [rows] of a set's rows, or null. If num_ids is above the range of int32, ignore
// the arrays.
GRACE_API int32_t grace_needed_rows(int32_t threads, int64_t entries, const int32_t* borders,
                                    const uint64_t* table, int32_t words, const uint8_t* star,
                                    int32_t* ids, int32_t* offsets, int64_t* num_ids) {
  return grace::guarded([&] {
    const Rows rows{table, star, words};
    grace::parallel_ranges(entries, kEntriesPerTask, threads, [&](grace::Range task) {
      std::vector<int32_t> kept;
      for (int64_t entry = task.begin; entry < task.end; ++entry) {
        const int64_t begin = borders[entry], count = borders[entry + 1] - begin;
        grace::require(count > 0, "needed_rows: an entry without rows");
        kept.clear();
        keep(rows, ids + begin, count, kept);
        std::copy(kept.begin(), kept.end(), ids + begin);
        offsets[entry + 1] = static_cast<int32_t>(kept.size());
      }
    });
    offsets[0] = 0;
    int64_t total = 0;
    for (int64_t entry = 0; entry < entries; ++entry) {
      std::copy_n(ids + borders[entry], offsets[entry + 1], ids + total);
      total += offsets[entry + 1];
      offsets[entry + 1] = static_cast<int32_t>(total);
    }
    *num_ids = total;
  });
}
