// The masks of bitmask rows and set rules, which kernels/eligibility/attributes.py and sets.py
// define. Bit i of a group's mask is its request i, and a group has up to 16 requests.
#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "grace/abi.h"
#include "grace/masks.h"
#include "grace/match.h"
#include "grace/parallel.h"

// The set rules that name each value of a set (index/matchers/exact_lists.py).
struct GracePostings {
  const int64_t* include_offsets;
  const int32_t* include_rules;
  const int64_t* exclude_offsets;
  const int32_t* exclude_rules;
  const uint8_t* kinds;  // [set rules]
  int64_t num_rules;
  int64_t num_values;
  int32_t missing_passes_exclude;
};

// What a batch asks about a set: see QueryTensors.
struct GraceSetQueries {
  const int32_t* offsets;
  const int32_t* value_offsets;
  const int32_t* values;
};

namespace {

using grace::kRequestsPerMask;

constexpr int64_t kBitmaskRowsPerTask = 8192;
constexpr int64_t kSetRulesPerTask = 65536;  // both masks of a task fit the L2 cache
constexpr uint8_t kHasInclude = 1;
constexpr uint8_t kHasExclude = 2;

// Answers for each byte of a bitmask row at once: which users of a group have no bit in this byte
// that the row lacks. Bytes in which no user has a bit pass everyone, and are left out.
class UserBytes {
 public:
  UserBytes(const uint64_t* users, int64_t requests, int32_t words)
      : all_(grace::mask_of(requests)) {
    for (int32_t byte = 0; byte < words * 8; ++byte) {
      uint64_t any = 0;
      for (int64_t b = 0; b < requests; ++b) any |= byte_of(users + b * words, byte);
      if (any == 0) continue;
      bytes_.push_back(byte);
      std::array<uint16_t, 256>& passing = passing_.emplace_back();
      for (uint64_t row = 0; row < 256; ++row) {
        uint16_t mask = 0;
        for (int64_t b = 0; b < requests; ++b) {
          const uint64_t user = byte_of(users + b * words, byte);
          if (grace::contains_all(&row, &user, 1)) mask |= static_cast<uint16_t>(1U << b);
        }
        passing[row] = mask;
      }
    }
  }

  uint16_t users_passing(const uint64_t* row) const {
    uint16_t mask = all_;
    for (size_t i = 0; i < bytes_.size(); ++i) mask &= passing_[i][byte_of(row, bytes_[i])];
    return mask;
  }

 private:
  static uint64_t byte_of(const uint64_t* row, int32_t byte) {
    return (row[byte / 8] >> (byte % 8 * 8)) & 255;
  }

  uint16_t all_;
  std::vector<int32_t> bytes_;
  std::vector<std::array<uint16_t, 256>> passing_;
};

// Adds a request to the masks of the rules in [range.begin, range.end) that a posting list has.
void walk(const int64_t* offsets, const int32_t* rules, int32_t value, grace::Range range,
          uint16_t request, uint16_t* masks) {
  const int32_t* end = rules + offsets[value + 1];
  const int32_t* at = std::lower_bound(rules + offsets[value], end, range.begin);
  for (; at < end && *at < range.end; ++at) masks[*at - range.begin] |= request;
}

// The masks of the set rules in a range, for the requests first .. first + requests.
void match_sets(const GracePostings& postings, const GraceSetQueries& queries, int64_t first,
                int64_t requests, grace::Range range, uint16_t* included) {
  std::vector<uint16_t> excluded(range.end - range.begin, 0);
  std::fill_n(included, range.end - range.begin, uint16_t{0});
  uint16_t missing = 0;
  for (int64_t i = 0; i < requests; ++i) {
    const int64_t b = first + i;
    const auto request = static_cast<uint16_t>(1U << i);
    if (queries.offsets[b] == queries.offsets[b + 1]) missing |= request;
    for (int32_t v = queries.value_offsets[b]; v < queries.value_offsets[b + 1]; ++v) {
      const int32_t value = queries.values[v];
      walk(postings.include_offsets, postings.include_rules, value, range, request, included);
      walk(postings.exclude_offsets, postings.exclude_rules, value, range, request,
           excluded.data());
    }
  }
  const uint16_t all = grace::mask_of(requests);
  const uint16_t failing_excludes = postings.missing_passes_exclude != 0 ? 0 : missing;
  for (int64_t r = range.begin; r < range.end; ++r) {
    const int64_t at = r - range.begin;
    const uint8_t kind = postings.kinds[r];
    if ((kind & kHasInclude) == 0) included[at] = all;
    if ((kind & kHasExclude) != 0) excluded[at] |= failing_excludes;
    included[at] = static_cast<uint16_t>(included[at] & ~excluded[at]);
  }
}

}  // namespace

// table uint64 [rows, words], users uint64 [requests, words], masks uint16 [groups, rows]: filled
GRACE_API int32_t grace_attribute_rows(int32_t threads, int64_t requests, const uint64_t* users,
                                       int64_t rows, int32_t words, const uint64_t* table,
                                       uint16_t* masks) {
  return grace::guarded([&] {
    for (int64_t first = 0; first < requests; first += kRequestsPerMask) {
      const int64_t count = std::min(requests - first, kRequestsPerMask);
      const UserBytes group(users + first * words, count, words);
      uint16_t* found = masks + first / kRequestsPerMask * rows;
      grace::parallel_ranges(rows, kBitmaskRowsPerTask, threads, [&](grace::Range range) {
        for (int64_t r = range.begin; r < range.end; ++r) {
          found[r] = group.users_passing(table + r * words);
        }
      });
    }
  });
}

// masks uint16 [groups, set rules]: filled
GRACE_API int32_t grace_set_rows(int32_t threads, int64_t requests, const GracePostings* postings,
                                 const GraceSetQueries* queries, uint16_t* masks) {
  return grace::guarded([&] {
    for (int32_t v = 0; v < queries->value_offsets[requests]; ++v) {
      grace::require(queries->values[v] >= 0 && queries->values[v] < postings->num_values,
                     "set_rows: a user's value is not one of the set's");
    }
    for (int64_t first = 0; first < requests; first += kRequestsPerMask) {
      const int64_t count = std::min(requests - first, kRequestsPerMask);
      uint16_t* found = masks + first / kRequestsPerMask * postings->num_rules;
      grace::parallel_ranges(
          postings->num_rules, kSetRulesPerTask, threads, [&](grace::Range range) {
            match_sets(*postings, *queries, first, count, range, found + range.begin);
          });
    }
  });
}
