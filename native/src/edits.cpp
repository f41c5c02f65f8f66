// Edits of large arrays, whose rows mostly stay: index/changes/rows.py. And the search for a few
// rows among many. All cores; no result depends on `threads`.
#include <algorithm>
#include <cstring>
#include <limits>
#include <mutex>
#include <string_view>
#include <vector>

#include "grace/abi.h"
#include "grace/interner.h"
#include "grace/parallel.h"

namespace grace::edits {

namespace {

using Table = Interner<char>;

constexpr int64_t kRowsAtOnce = 1 << 16;
constexpr int64_t kBlocksPerRun = 8;

// Runs of rows that stay: those from begin to end move to `to`.   int64 [3, count]
struct Runs {
  int64_t count;
  const int64_t* begin;
  const int64_t* end = begin + count;
  const int64_t* to = end + count;
};

// The numbers that rows have after an edit. A table says between which runs to search for a row.
class Moves {
 public:
  Moves(const Runs& runs, int64_t rows) : runs_(runs) {
    while ((rows >> bits_) > kBlocksPerRun * runs.count) ++bits_;
    firsts_.resize((rows >> bits_) + 2);
    for (size_t block = 0; block < firsts_.size(); ++block) {
      firsts_[block] = run_of(0, runs.count, static_cast<int64_t>(block) << bits_);
    }
    if (runs.count == 0) return;
    for (auto first = firsts_.begin(); first + 1 < firsts_.end(); ++first) {
      shifts_.push_back(first[0] == first[1] ? shift_of(first[0]) : kSeveral);
    }
  }

  int32_t operator()(int32_t row) const {
    if (row < 0) return row;
    const int64_t block = row >> bits_;
    if (shifts_[block] != kSeveral) return row + shifts_[block];
    return row + shift_of(run_of(firsts_[block], firsts_[block + 1] + 1, row));
  }

 private:
  static constexpr int32_t kSeveral = std::numeric_limits<int32_t>::min();

  int32_t shift_of(int64_t run) const {
    return static_cast<int32_t>(runs_.to[run] - runs_.begin[run]);
  }

  // The last run of first .. end - 1 that begins at a row or before it, or the first one.
  int64_t run_of(int64_t first, int64_t end, int64_t row) const {
    const int64_t* const after = std::upper_bound(runs_.begin + first, runs_.begin + end, row);
    return std::max<int64_t>(after - runs_.begin - 1, first);
  }

  const Runs runs_;
  int bits_ = 0;
  std::vector<int64_t> firsts_;  // the run of the first row of each block
  std::vector<int32_t> shifts_;  // of all rows of each block, or kSeveral
};

template <typename Number>
void move_numbers(const Runs& runs, const int64_t* shifts, const char* rows, int32_t threads,
                  char* moved) {
  const auto* const from = reinterpret_cast<const Number*>(rows);
  auto* const to = reinterpret_cast<Number*>(moved);
  parallel_tasks(runs.count, threads, [&](int64_t run) {
    std::transform(from + runs.begin[run], from + runs.end[run], to + runs.to[run],
                   [=](Number number) { return static_cast<Number>(number + shifts[run]); });
  });
}

// Row r has the numbers offsets[r] .. offsets[r + 1] or, with a width, width * r .. width * (r +
// 1).
struct Column {
  const int64_t* offsets;
  const char* numbers;
  int64_t bytes;  // of a number
  int64_t width;
};

// Returns the bytes of row r. If there are several columns, or lists, they are copied to `row`,
// each after its number of bytes.
std::string_view bytes_of(const Column* columns, int64_t count, int64_t r, std::vector<char>& row) {
  if (count == 1 && columns->width > 0) {
    const int64_t size = columns->bytes * columns->width;
    return {columns->numbers + size * r, static_cast<size_t>(size)};
  }
  row.clear();
  for (const Column* column = columns; column < columns + count; ++column) {
    const auto [offsets, numbers, bytes, width] = *column;
    const int64_t begin = bytes * (width > 0 ? width * r : offsets[r]);
    const int64_t end = bytes * (width > 0 ? width * (r + 1) : offsets[r + 1]);
    const auto size = static_cast<int32_t>(end - begin);
    row.insert(row.end(), reinterpret_cast<const char*>(&size),
               reinterpret_cast<const char*>(&size + 1));
    row.insert(row.end(), numbers + begin, numbers + end);
  }
  return {row.data(), row.size()};
}

}  // namespace

// Moves rows of `bytes` each. With `shifts` they are numbers of 4 or 8 bytes, and each run has a
// shift that is added to them.
GRACE_API int32_t grace_move_rows(int64_t count, const int64_t* begins, const int64_t* shifts,
                                  int64_t bytes, const char* rows, int32_t threads, char* moved) {
  return guarded([&] {
    const Runs runs{count, begins};
    if (shifts != nullptr) {
      const auto move = bytes == sizeof(int32_t) ? move_numbers<int32_t> : move_numbers<int64_t>;
      return move(runs, shifts, rows, threads, moved);
    }
    parallel_tasks(runs.count, threads, [&](int64_t run) {
      std::memcpy(moved + runs.to[run] * bytes, rows + runs.begin[run] * bytes,
                  (runs.end[run] - runs.begin[run]) * bytes);
    });
  });
}

// Moves rows that are themselves numbers of rows, below `num_ids`, and gives them their new
// numbers.
GRACE_API int32_t grace_move_ids(int64_t count, const int64_t* begins, int64_t num_ids,
                                 int64_t count_of_ids, const int64_t* begins_of_ids,
                                 const int32_t* rows, int32_t threads, int32_t* moved) {
  return guarded([&] {
    const Runs runs{count, begins};
    const Moves moves({count_of_ids, begins_of_ids}, num_ids);
    parallel_tasks(runs.count, threads, [&](int64_t run) {
      std::transform(rows + runs.begin[run], rows + runs.end[run], moved + runs.to[run],
                     std::ref(moves));
    });
  });
}

// Writes the first of `rows` rows that equals each wanted row in all columns, or -1. Wanted rows
// differ.
GRACE_API int32_t grace_find_rows(int64_t num_columns, int64_t rows, const Column* columns,
                                  int64_t num_wanted, const Column* wanted, int32_t threads,
                                  int64_t* found) {
  return guarded([&] {
    Table table;
    std::vector<char> row;
    for (int64_t i = 0; i < num_wanted; ++i) {
      const std::string_view own = bytes_of(wanted, num_columns, i, row);
      table.find_or_add(own.data(), static_cast<int64_t>(own.size()));
    }
    require(table.size() == num_wanted, "find_rows: two wanted rows are equal");
    std::fill_n(found, num_wanted, rows);
    std::mutex lock;
    parallel_ranges(rows, kRowsAtOnce, threads, [&](const Range& range) {
      std::vector<char> row;
      std::vector<Table::Lookup> lookups(1);
      for (int64_t r = range.begin; r < range.end; ++r) {
        int32_t id = 0;
        const std::string_view own = bytes_of(columns, num_columns, r, row);
        lookups[0] = {&table, own.data(), static_cast<int64_t>(own.size()), &id};
        Table::find(lookups);
        if (id == Table::kAbsent) continue;
        const std::lock_guard<std::mutex> hold(lock);
        found[id] = std::min(found[id], r);
      }
    });
    std::replace(found, found + num_wanted, rows, int64_t{-1});
  });
}

}  // namespace grace::edits
