// Edits of large arrays: some rows go, some join, all others keep their order. And the search for a
// few rows among many. index/changes/rows.py says what an edit is. All cores; no result depends on
// `threads`.
#include <algorithm>
#include <cstring>
#include <mutex>
#include <vector>

#include "grace/abi.h"
#include "grace/interner.h"
#include "grace/parallel.h"

// Row r of a column is words[offsets[r] .. offsets[r + 1]], or if `offsets` is null the words
// [width * r .. width * (r + 1)].
struct GraceColumn {
  const int64_t* offsets;
  const int32_t* words;
  int64_t width;
};

// Some rows go, and others join: each before the row `at`, or at the end if that is `size`. Both
// ascend.
struct GraceEdit {
  int64_t size;
  int64_t num_removed;
  int64_t num_joining;
  const int64_t* removed;
  const int64_t* at;
};

namespace grace::edits {

namespace {

constexpr int64_t kRowsAtOnce = 1 << 18;
constexpr int64_t kBlocksPerBreak = 8;

void require_valid(const GraceEdit& edit) {
  const auto ascend = [](const int64_t* rows, int64_t count, int64_t step, int64_t end) {
    for (int64_t i = 0, least = 0; i < count; ++i) {
      require(rows[i] >= least && rows[i] < end, "edit: a row out of range or order");
      least = rows[i] + step;
    }
  };
  ascend(edit.removed, edit.num_removed, 1, edit.size);
  ascend(edit.at, edit.num_joining, 0, edit.size + 1);
}

// The places of edit.removed and edit.at that come before a row.
struct Place {
  int64_t removed;
  int64_t joining;
};

Place place_of(const GraceEdit& edit, int64_t row) {
  return {std::lower_bound(edit.removed, edit.removed + edit.num_removed, row) - edit.removed,
          std::lower_bound(edit.at, edit.at + edit.num_joining, row) - edit.at};
}

// Calls stay(begin, end, to, before) for rows that stay, which move to `to`, and join(first, last,
// to, before) for new rows, in order. `before` is what goes and joins before them. Calls come from
// several threads.
template <typename Stay, typename Join>
void for_each_run(const GraceEdit& edit, int32_t threads, const Stay& stay, const Join& join) {
  const int64_t tasks = std::max<int64_t>(1, (edit.size + kRowsAtOnce - 1) / kRowsAtOnce);
  parallel_tasks(tasks, threads, [&](int64_t task) {
    int64_t row = task * kRowsAtOnce;
    const bool is_last = task == tasks - 1;
    const int64_t end = is_last ? edit.size : row + kRowsAtOnce;
    Place before = place_of(edit, row);
    int64_t to = row - before.removed + before.joining;
    for (;;) {
      int64_t next = end;
      if (before.removed < edit.num_removed) next = std::min(next, edit.removed[before.removed]);
      if (before.joining < edit.num_joining) next = std::min(next, edit.at[before.joining]);
      if (next > row) stay(row, next, to, before);
      to += next - row;
      row = next;
      if (row == end && !is_last) return;
      int64_t last = before.joining;
      while (last < edit.num_joining && edit.at[last] == row) ++last;
      if (last > before.joining) join(before.joining, last, to, before);
      to += last - before.joining;
      before.joining = last;
      if (row == end) return;
      if (before.removed < edit.num_removed && edit.removed[before.removed] == row) {
        ++before.removed;
        ++row;
      }
    }
  });
}

// The numbers of rows after an edit. A few comparisons find one: a table by blocks of rows says
// which changes come before.
class Moves {
 public:
  explicit Moves(const GraceEdit& edit) {
    // A row that goes moves those after it, and a row that joins those from its place on.
    Place next{0, 0};
    int64_t shift = 0;
    const int64_t count = edit.num_removed + edit.num_joining;
    breaks_.reserve(count);
    shifts_.assign(1, 0);
    while (next.removed + next.joining < count) {
      const bool joins =
          next.joining < edit.num_joining &&
          (next.removed == edit.num_removed || edit.at[next.joining] <= edit.removed[next.removed]);
      breaks_.push_back(joins ? edit.at[next.joining++] : edit.removed[next.removed++] + 1);
      shift += joins ? 1 : -1;
      shifts_.push_back(static_cast<int32_t>(shift));
    }
    while ((edit.size >> bits_) > kBlocksPerBreak * count) ++bits_;
    firsts_.resize((edit.size >> bits_) + 2);
    for (size_t block = 0; block < firsts_.size(); ++block) {
      const auto first = static_cast<int64_t>(block) << bits_;
      firsts_[block] = static_cast<int32_t>(
          std::lower_bound(breaks_.begin(), breaks_.end(), first) - breaks_.begin());
    }
  }

  int32_t operator()(int32_t row) const {
    if (row < 0) return row;
    const int32_t* const first = &firsts_[row >> bits_];
    if (first[0] == first[1]) return row + shifts_[first[0]];
    const auto end = breaks_.begin() + first[1];
    return row + shifts_[std::upper_bound(breaks_.begin() + first[0], end, row) - breaks_.begin()];
  }

 private:
  int bits_ = 0;
  std::vector<int64_t> breaks_;  // ascending
  std::vector<int32_t> shifts_;  // after this many of the breaks
  std::vector<int32_t> firsts_;  // breaks before each block of rows
};

template <typename Offset>
void edit_offsets(const GraceEdit& edit, const Offset* offsets, const int64_t* sizes,
                  int32_t threads, Offset* edited) {
  // Members that go, and that join, with the first groups that do.
  std::vector<int64_t> lost(edit.num_removed + 1), won(edit.num_joining + 1);
  for (int64_t i = 0; i < edit.num_removed; ++i) {
    const int64_t group = edit.removed[i];
    lost[i + 1] = lost[i] + offsets[group + 1] - offsets[group];
  }
  for (int64_t i = 0; i < edit.num_joining; ++i) won[i + 1] = won[i] + sizes[i];
  for_each_run(
      edit, threads,
      [&](int64_t begin, int64_t end, int64_t to, const Place& before) {
        const auto shift = static_cast<Offset>(won[before.joining] - lost[before.removed]);
        for (int64_t group = begin; group < end; ++group) edited[to++] = offsets[group] + shift;
      },
      [&](int64_t first, int64_t last, int64_t to, const Place& before) {
        const int64_t start = offsets[edit.at[first]] - lost[before.removed];
        for (; first < last; ++first) edited[to++] = static_cast<Offset>(start + won[first]);
      });
  const int64_t rows = edit.size - edit.num_removed + edit.num_joining;
  edited[rows] = static_cast<Offset>(offsets[edit.size] + won.back() - lost.back());
}

struct Rows {
  const GraceColumn* columns;
  int64_t num_columns;

  static const int32_t* words(const GraceColumn& column, int64_t row) {
    return column.words + (column.offsets == nullptr ? row * column.width : column.offsets[row]);
  }

  static int64_t length(const GraceColumn& column, int64_t row) {
    return column.offsets == nullptr ? column.width : column.offsets[row + 1] - column.offsets[row];
  }

  uint64_t hash(int64_t row) const {
    uint64_t found = 0;
    for (int64_t c = 0; c < num_columns; ++c) {
      found = mix(found ^ hash_span(words(columns[c], row), length(columns[c], row)),
                  0x9e3779b97f4a7c15u) +
              1;
    }
    return found;
  }

  bool same(int64_t row, const Rows& others, int64_t other) const {
    for (int64_t c = 0; c < num_columns; ++c) {
      const int64_t own = length(columns[c], row);
      if (own != length(others.columns[c], other)) return false;
      const int32_t* const words_there = words(others.columns[c], other);
      if (!std::equal(words_there, words_there + own, words(columns[c], row))) return false;
    }
    return true;
  }
};

}  // namespace

// Writes the rows after an edit, `bytes` each: edited[size - removed + joining].
GRACE_API int32_t grace_edit_rows(const GraceEdit* edit, int64_t bytes, const char* rows,
                                  const char* joining, int32_t threads, char* edited) {
  return guarded([&] {
    require_valid(*edit);
    for_each_run(
        *edit, threads,
        [&](int64_t begin, int64_t end, int64_t to, const Place&) {
          std::memcpy(edited + to * bytes, rows + begin * bytes, (end - begin) * bytes);
        },
        [&](int64_t first, int64_t last, int64_t to, const Place&) {
          std::memcpy(edited + to * bytes, joining + first * bytes, (last - first) * bytes);
        });
  });
}

// The same of ids: those that stay are numbers of rows, which the edit `ids` moves.
GRACE_API int32_t grace_edit_ids(const GraceEdit* edit, const GraceEdit* ids, const int32_t* rows,
                                 const int32_t* joining, int32_t threads, int32_t* edited) {
  return guarded([&] {
    require_valid(*edit);
    require_valid(*ids);
    const Moves moved(*ids);
    for_each_run(
        *edit, threads,
        [&](int64_t begin, int64_t end, int64_t to, const Place&) {
          std::transform(rows + begin, rows + end, edited + to, moved);
        },
        [&](int64_t first, int64_t last, int64_t to, const Place&) {
          std::copy(joining + first, joining + last, edited + to);
        });
  });
}

// Writes the offsets of groups after an edit of the groups. Offsets have 4 or 8 bytes.
//   sizes [joining]   of the groups that join
GRACE_API int32_t grace_edit_offsets(const GraceEdit* edit, int64_t bytes, const void* offsets,
                                     const int64_t* sizes, int32_t threads, void* edited) {
  return guarded([&] {
    require_valid(*edit);
    if (bytes == sizeof(int32_t)) {
      edit_offsets(*edit, static_cast<const int32_t*>(offsets), sizes, threads,
                   static_cast<int32_t*>(edited));
    } else {
      require(bytes == sizeof(int64_t), "edit_offsets: offsets have 4 or 8 bytes");
      edit_offsets(*edit, static_cast<const int64_t*>(offsets), sizes, threads,
                   static_cast<int64_t*>(edited));
    }
  });
}

// Writes the first of `rows` rows that equals each wanted row in all columns, or -1. Wanted rows
// differ.
GRACE_API int32_t grace_find_rows(int64_t num_columns, int64_t rows, const GraceColumn* columns,
                                  int64_t num_wanted, const GraceColumn* wanted_columns,
                                  int32_t threads, int64_t* found) {
  return guarded([&] {
    const Rows all{columns, num_columns}, wanted{wanted_columns, num_columns};
    std::fill_n(found, num_wanted, -1);
    size_t size = 64;
    while (size < 4 * static_cast<size_t>(num_wanted)) size *= 2;
    std::vector<int64_t> slots(size, -1);
    std::vector<uint64_t> hashes(num_wanted);
    for (int64_t i = 0; i < num_wanted; ++i) {
      hashes[i] = wanted.hash(i);
      size_t slot = hashes[i] & (size - 1);
      while (slots[slot] >= 0) slot = (slot + 1) & (size - 1);
      slots[slot] = i;
    }
    std::mutex lock;
    parallel_ranges(rows, kRowsAtOnce, threads, [&](const Range& range) {
      for (int64_t row = range.begin; row < range.end; ++row) {
        const uint64_t hash = all.hash(row);
        for (size_t slot = hash & (size - 1); slots[slot] >= 0; slot = (slot + 1) & (size - 1)) {
          const int64_t i = slots[slot];
          if (hashes[i] != hash || !all.same(row, wanted, i)) continue;
          const std::lock_guard<std::mutex> hold(lock);
          if (found[i] < 0 || row < found[i]) found[i] = row;
        }
      }
    });
  });
}

}  // namespace grace::edits
