// Structure checks over the raw arrays of a snapshot, which may hold anything.
//
// Each check reads its arrays once, on all cores, and reports the first fault as {kind, position};
// the caller, who knows the names, words it. No content leads to a read outside the given lengths:
// every offset and id is compared with its bounds before it is followed.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string_view>
#include <vector>

#include "grace/abi.h"
#include "grace/parallel.h"
#include "grace/utf8.h"

namespace grace {
namespace {

// index/storage/checks.py has the same numbers.
enum FaultKind : int64_t {
  kNone = 0,
  kFirstOffset = 1,     // the first offset is not 0
  kOffsetDescends = 2,  // an offset is below the one before it, or leaves its array
  kEmptyGroup = 3,      // an offset equals the one before it where every group needs a member
  kLastOffset = 4,      // the last offset is not the number of members
  kOutOfRange = 5,
  kNotAscending = 6,  // not above its predecessor in the group
  kPaddingBit = 7,    // a bit beyond the last attribute is set
  kNotFinite = 8,
  kNotUtf8 = 9,
};

struct Fault {
  int64_t kind = kNone;
  int64_t at = 0;
};

constexpr int64_t kSmall = 1 << 16;  // below this a second thread costs more than it brings
constexpr int64_t kChunks = 64;

// Runs check(range) over all of [0, count) and writes the first chunk's fault.
template <typename Check>
void first_fault(int64_t count, int32_t threads, int64_t* fault, Check&& check) {
  require(count >= 0, "count is negative");
  const int64_t chunks = count < kSmall ? 1 : kChunks;
  std::vector<Fault> found(chunks);
  parallel_tasks(chunks, threads, [&](int64_t i) { found[i] = check(chunk_of(count, chunks, i)); });
  fault[0] = kNone;
  fault[1] = 0;
  for (const Fault& each : found) {
    if (each.kind == kNone) continue;
    fault[0] = each.kind;
    fault[1] = each.at;
    return;
  }
}

// `offsets` has groups + 1 entries that cut [0, members) into groups.
template <typename Offset>
void check_offsets(const Offset* offsets, int64_t groups, int64_t members, bool nonempty,
                   int32_t threads, int64_t* fault) {
  first_fault(groups, threads, fault, [&](Range range) -> Fault {
    if (range.begin == 0 && offsets[0] != 0) return {kFirstOffset, 0};
    for (int64_t i = range.begin + 1; i <= range.end; ++i) {
      if (offsets[i] < offsets[i - 1]) return {kOffsetDescends, i};
      if (nonempty && offsets[i] == offsets[i - 1]) return {kEmptyGroup, i};
    }
    if (range.end == groups && offsets[groups] != members) return {kLastOffset, groups};
    return {};
  });
}

// The members of every group are strictly ascending within 0 .. greatest.
template <typename Offset, typename Value>
void check_groups(const Offset* offsets, int64_t groups, const Value* values, int64_t count,
                  int64_t greatest, int32_t threads, int64_t* fault) {
  require(count >= 0, "count of values is negative");
  first_fault(groups, threads, fault, [&](Range range) -> Fault {
    for (int64_t group = range.begin; group < range.end; ++group) {
      const int64_t begin = offsets[group];
      const int64_t end = offsets[group + 1];
      if (begin < 0 || end < begin || end > count) return {kOffsetDescends, group + 1};
      for (int64_t i = begin; i < end; ++i) {
        const int64_t value = static_cast<int64_t>(values[i]);
        if (value < 0 || value > greatest) return {kOutOfRange, i};
        if (i > begin && values[i] <= values[i - 1]) return {kNotAscending, i};
      }
    }
    return {};
  });
}

}  // namespace

GRACE_API int32_t grace_check_offsets_i32(const int32_t* offsets, int64_t groups, int64_t members,
                                          int32_t nonempty, int32_t threads, int64_t* fault) {
  return guarded([&] { check_offsets(offsets, groups, members, nonempty != 0, threads, fault); });
}

GRACE_API int32_t grace_check_offsets_i64(const int64_t* offsets, int64_t groups, int64_t members,
                                          int32_t nonempty, int32_t threads, int64_t* fault) {
  return guarded([&] { check_offsets(offsets, groups, members, nonempty != 0, threads, fault); });
}

// Tokens of `groups` nodes.
GRACE_API int32_t grace_check_groups_i32_u16(const int32_t* offsets, int64_t groups,
                                             const uint16_t* values, int64_t count,
                                             int64_t greatest, int32_t threads, int64_t* fault) {
  return guarded([&] { check_groups(offsets, groups, values, count, greatest, threads, fault); });
}

// Value ids of set rules, and ads of entities.
GRACE_API int32_t grace_check_groups_i64_i32(const int64_t* offsets, int64_t groups,
                                             const int32_t* values, int64_t count, int64_t greatest,
                                             int32_t threads, int64_t* fault) {
  return guarded([&] { check_groups(offsets, groups, values, count, greatest, threads, fault); });
}

// Ad ids of leaves, and ids of entities.
GRACE_API int32_t grace_check_groups_i64_i64(const int64_t* offsets, int64_t groups,
                                             const int64_t* values, int64_t count, int64_t greatest,
                                             int32_t threads, int64_t* fault) {
  return guarded([&] { check_groups(offsets, groups, values, count, greatest, threads, fault); });
}

// begin <= ids[i * stride] < end for every i in [0, count).
GRACE_API int32_t grace_check_ids(const int32_t* ids, int64_t count, int64_t stride, int64_t begin,
                                  int64_t end, int32_t threads, int64_t* fault) {
  return guarded([&] {
    require(stride >= 1, "stride must be at least 1");
    first_fault(count, threads, fault, [&](Range range) -> Fault {
      for (int64_t i = range.begin; i < range.end; ++i) {
        const int64_t id = ids[i * stride];
        if (id < begin || id >= end) return {kOutOfRange, i};
      }
      return {};
    });
  });
}

// The bits from `bits` to the end of each row are zero.
GRACE_API int32_t grace_check_padding(const uint64_t* table, int64_t rows, int64_t words,
                                      int64_t bits, int32_t threads, int64_t* fault) {
  return guarded([&] {
    require(words >= 1 && bits >= 0 && bits <= words * 64 && bits > (words - 1) * 64 - 1,
            "bits must end in the last word of a row");
    const int64_t used = bits - (words - 1) * 64;
    const uint64_t padding = used == 64 ? 0 : ~uint64_t{0} << used;
    first_fault(rows, threads, fault, [&](Range range) -> Fault {
      for (int64_t row = range.begin; row < range.end; ++row) {
        if ((table[row * words + words - 1] & padding) != 0) return {kPaddingBit, row};
      }
      return {};
    });
  });
}

// The ads in the order of `lookup` have strictly ascending ids; so it is a permutation of the
// ordinals, and no id occurs twice.
GRACE_API int32_t grace_check_lookup(const int64_t* ad_ids, const int32_t* lookup, int64_t ads,
                                     int32_t threads, int64_t* fault) {
  return guarded([&] {
    const auto inside = [&](int64_t i) { return lookup[i] >= 0 && lookup[i] < ads; };
    first_fault(ads, threads, fault, [&](Range range) -> Fault {
      for (int64_t i = range.begin; i < range.end; ++i) {
        if (!inside(i)) return {kOutOfRange, i};
        if (i == 0) continue;
        // A predecessor that is itself out of range is reported by its own position.
        if (inside(i - 1) && ad_ids[lookup[i]] <= ad_ids[lookup[i - 1]]) {
          return {kNotAscending, i};
        }
      }
      return {};
    });
  });
}

GRACE_API int32_t grace_check_finite(const float* values, int64_t count, int32_t threads,
                                     int64_t* fault) {
  return guarded([&] {
    first_fault(count, threads, fault, [&](Range range) -> Fault {
      for (int64_t i = range.begin; i < range.end; ++i) {
        if (!std::isfinite(values[i])) return {kNotFinite, i};
      }
      return {};
    });
  });
}

// Each string is UTF-8 and above the one before it, byte by byte.
GRACE_API int32_t grace_check_strings(const int64_t* offsets, int64_t count, const uint8_t* utf8,
                                      int64_t bytes, int32_t threads, int64_t* fault) {
  return guarded([&] {
    require(bytes >= 0, "bytes is negative");
    const auto inside = [&](int64_t i) {
      return offsets[i] >= 0 && offsets[i] <= offsets[i + 1] && offsets[i + 1] <= bytes;
    };
    const auto text = [&](int64_t i) {
      const auto size = static_cast<size_t>(offsets[i + 1] - offsets[i]);
      return std::string_view(reinterpret_cast<const char*>(utf8) + offsets[i], size);
    };
    first_fault(count, threads, fault, [&](Range range) -> Fault {
      for (int64_t i = range.begin; i < range.end; ++i) {
        if (!inside(i)) return {kOffsetDescends, i + 1};
        if (!is_utf8(text(i))) return {kNotUtf8, i};
        if (i > 0 && inside(i - 1) && text(i) <= text(i - 1)) return {kNotAscending, i};
      }
      return {};
    });
  });
}

}  // namespace grace
