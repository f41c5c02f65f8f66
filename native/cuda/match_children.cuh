// Tests which of a warp's children pass the matchers of their users.
//
// Cheap tests come first: the words of a bitmask row in which the user has bits, then the stored
// answer for the reserved element. Children that these do not decide are packed into full warps,
// and one pass over a Bloom row tests all of a user's queries. Each lane has several children in
// flight. If a child has several rows (k-way), its first row is tested alone, which decides nearly
// all. Then the lanes share the other rows of the undecided children: one row per child at first,
// more as children drop out. In mode `exact` the test is one bit of the child's node, or
// for a leaf one bit of each of its rules.
#pragma once

#include "grace/admission.h"
#include "grace/bloom_tables.h"
#include "launch.cuh"

namespace grace {

constexpr int kInFlight = 4;  // children per lane at a time
constexpr int kPerWarp = kInFlight * kWarp;
constexpr int kWarpBits = 5;
constexpr int kAlone = 4;  // rules of a leaf that one lane tests
constexpr int32_t kNoId = -1;

struct BeamRow {
  uint32_t begin;  // child entries, less than 2^31
  uint32_t end;
  int32_t request;
};

// Children of a warp that wait for a test: the row to test, and the child's place in the warp's
// round. For children of several rows: the place of the next row's id, and the number of rows left.
struct Waiting {
  int32_t next[kPerWarp];
  int32_t left[kPerWarp];
  uint16_t places[kPerWarp];
  uint8_t found[kPerWarp];
};

// The queries of one request for one set.
struct Queries {
  const uint64_t* hashes;
  int64_t count;
  const uint64_t* tables;  // null if the hashes are tested one by one
};

__device__ inline BeamRow beam_row(const Admission& at, const int32_t* nodes, uint32_t row,
                                   uint32_t rows, uint32_t beams) {
  if (row >= rows) return {0, 0, 0};
  const int32_t node = nodes[row];
  const int32_t request = static_cast<int32_t>(row / beams);
  if (node < 0 || node >= at.internal_nodes || request >= at.requests) return {0, 0, 0};
  const int32_t* offsets = in_device_memory(at.node_offsets);
  return {static_cast<uint32_t>(offsets[node]), static_cast<uint32_t>(offsets[node + 1]), request};
}

__device__ inline Queries queries_of(const AdmissionSet& set, int64_t request) {
  const int32_t* offsets = in_device_memory(set.offsets);
  const uint32_t first = offsets[request];
  const int64_t count = offsets[request + 1] - first;
  const bool tabled = set.query_tables != nullptr && count <= kTabledQueries;
  return {set.hashes + first, count,
          tabled ? set.query_tables + request * bloom_table_entries(set.bits) : nullptr};
}

__device__ inline bool row_holds_any(const AdmissionSet& set, int64_t id, const Queries& queries) {
  const uint32_t words = set.bits / 64;
  const uint64_t* row = in_device_memory(set.table) + id * words;
  if (queries.tables == nullptr) {
    return contains_any(row, false, in_device_memory(queries.hashes), queries.count,
                        {set.bits, set.hashes_per_value});
  }
  const uint64_t* tables = in_device_memory(queries.tables);
  uint64_t held = ~uint64_t{0};
  if (words != 4 || (reinterpret_cast<uintptr_t>(set.table) & 15) != 0) {
    for (uint32_t w = 0; w < words && held != 0; ++w) held = still_held(held, row[w], w, tables);
    return held != 0;
  }
  const ulonglong2 low = reinterpret_cast<const ulonglong2*>(row)[0];
  const ulonglong2 high = reinterpret_cast<const ulonglong2*>(row)[1];
  held = still_held(held, low.x, 0, tables);
  if (held != 0) held = still_held(held, low.y, 1, tables);
  if (held != 0) held = still_held(held, high.x, 2, tables);
  if (held != 0) held = still_held(held, high.y, 3, tables);
  return held != 0;
}

// Enlists the children of all lanes for which `waits` has a bit; returns their number.
template <typename Enlist>
__device__ int enlist(uint32_t waits, Waiting& waiting, const Enlist& enlist_at) {
  const int lane = threadIdx.x % kWarp;
  int total = 0;
#pragma unroll
  for (int u = 0; u < kInFlight; ++u) {
    const bool own = (waits >> u & 1) != 0;
    const uint32_t waiters = __ballot_sync(kAllLanes, own);
    if (own) {
      const int at = total + __popc(waiters & ((1u << lane) - 1));
      waiting.places[at] = static_cast<uint16_t>(u * kWarp + lane);
      enlist_at(u, at);
    }
    total += __popc(waiters);
  }
  __syncwarp();
  return total;
}

// Drops children that are decided, or have no more rows than the `each` just tested.
__device__ inline int still_undecided(Waiting& waiting, int total, int each) {
  const int lane = threadIdx.x % kWarp;
  int kept = 0;
  for (int begin = 0; begin < total; begin += kWarp) {
    const int at = begin + lane;
    const int from = at < total ? at : 0;
    const int32_t next = waiting.next[from] + each;
    const int32_t left = waiting.left[from] - each;
    const uint16_t place = waiting.places[from];
    const bool stays = at < total && left > 0 && waiting.found[place] == 0;
    const uint32_t staying = __ballot_sync(kAllLanes, stays);
    if (stays) {
      const int to = kept + __popc(staying & ((1u << lane) - 1));
      waiting.next[to] = next;
      waiting.left[to] = left;
      waiting.places[to] = place;
    }
    kept += __popc(staying);
    __syncwarp();
  }
  return kept;
}

template <typename T>
__device__ T picked(const T (&values)[kInFlight], int which) {
  T value = values[0];
#pragma unroll
  for (int u = 1; u < kInFlight; ++u) value = which == u ? values[u] : value;
  return value;
}

// Reads the first row of each of a lane's children, which are first, first + kStride, ..: the u-th
// if bit u of `asked` is set.
template <int kStride>
__device__ void first_rows(const EntryRows& rows, uint32_t first, uint32_t asked,
                           int32_t (&ids)[kInFlight]) {
  const int32_t* all_ids = in_device_memory(rows.ids);
  if (rows.offsets == nullptr) {
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) {
      ids[u] = (asked >> u & 1) != 0 ? all_ids[first + u * kStride] : 0;
    }
    return;
  }
  const int32_t* offsets = in_device_memory(rows.offsets);
#pragma unroll
  for (int u = 0; u < kInFlight; ++u) {
    ids[u] = (asked >> u & 1) != 0 ? offsets[first + u * kStride] : 0;
  }
#pragma unroll
  for (int u = 0; u < kInFlight; ++u) ids[u] = (asked >> u & 1) != 0 ? all_ids[ids[u]] : 0;
}

// Returns the `undecided` children for which holds(id, request, peek(id, request)) is true of some
// row after the first. The reads of peek are in flight for several rows at once. All lanes call it
// together.
template <int kStride, typename Peek, typename Holds>
__device__ uint32_t later_row_holds(const EntryRows& rows, const BeamRow& beam, uint32_t first,
                                    Waiting& waiting, uint32_t undecided, const Peek& peek,
                                    const Holds& holds) {
  if (rows.offsets == nullptr || !__any_sync(kAllLanes, undecided != 0)) return 0;
  const int32_t* offsets = in_device_memory(rows.offsets);
  const int32_t* all_ids = in_device_memory(rows.ids);
  const int lane = threadIdx.x % kWarp;
  int32_t next[kInFlight], left[kInFlight];
#pragma unroll
  for (int u = 0; u < kInFlight; ++u) {
    const bool asked = (undecided >> u & 1) != 0;
    next[u] = asked ? offsets[first + u * kStride] + 1 : 0;
    left[u] = asked ? offsets[first + u * kStride + 1] - next[u] : 0;
  }
#pragma unroll
  for (int u = 0; u < kInFlight; ++u) {
    if (left[u] == 0) undecided &= ~(1u << u);
  }
  int total = enlist(undecided, waiting, [&](int u, int at) {
    waiting.next[at] = next[u];
    waiting.left[at] = left[u];
    waiting.found[u * kWarp + lane] = 0;
  });
#pragma unroll 1
  while (total > 0) {
    // Neighbouring lanes test rows of one child, as many as there are lanes for each.
    const int each_bits = total < kWarp ? kWarpBits - (kWarp - __clz(total - 1)) : 0;
    const int each = 1 << each_bits, tests = total << each_bits;
#pragma unroll 1
    for (int begin = 0; begin < tests; begin += kPerWarp) {
      int32_t ids[kInFlight], places[kInFlight], requests[kInFlight];
      uint64_t peeked[kInFlight];
#pragma unroll
      for (int u = 0; u < kInFlight; ++u) {
        const int of = (begin + u * kWarp + lane) >> each_bits, which = lane & (each - 1);
        const bool there = of < total && which < waiting.left[of];
        ids[u] = there ? all_ids[waiting.next[of] + which] : kNoId;
        places[u] = there ? waiting.places[of] : lane;
        // The lane whose child this is may have another request than this lane.
        requests[u] = __shfl_sync(kAllLanes, beam.request, places[u] % kWarp);
      }
#pragma unroll
      for (int u = 0; u < kInFlight; ++u) {
        peeked[u] = ids[u] != kNoId ? peek(ids[u], requests[u]) : 0;
      }
#pragma unroll 1
      for (int u = 0; u < kInFlight; ++u) {
        const int32_t id = picked(ids, u);
        if (id != kNoId && holds(id, picked(requests, u), picked(peeked, u))) {
          waiting.found[picked(places, u)] = 1;
        }
      }
    }
    __syncwarp();
    total = still_undecided(waiting, total, each);
  }
  uint32_t held = 0;
#pragma unroll
  for (int u = 0; u < kInFlight; ++u) {
    if ((undecided >> u & 1) != 0 && waiting.found[u * kWarp + lane] != 0) held |= 1u << u;
  }
  __syncwarp();
  return held;
}

template <int kStride>
__device__ uint32_t test_bitmasks(const Admission& at, const BeamRow& beam, uint32_t first,
                                  Waiting& waiting, uint32_t passes) {
  const uint64_t* table = in_device_memory(at.bitmask_table);
  const uint64_t* all_users = in_device_memory(at.users);
  const int32_t* all_used = in_device_memory(at.user_words);
  int32_t ids[kInFlight];
  first_rows<kStride>(at.bitmask, first, passes, ids);
  const uint64_t* rows[kInFlight];
#pragma unroll
  for (int u = 0; u < kInFlight; ++u) rows[u] = table + int64_t{ids[u]} * at.words;
  // A word in which the user has no bit always passes.
  const uint64_t* user_row = all_users + int64_t{beam.request} * at.words;
  const int32_t* words = all_used + int64_t{beam.request} * (1 + at.words);
  const int32_t used = passes != 0 ? words[0] : 0;
  uint32_t held = passes;
#pragma unroll 1
  for (int32_t i = 0; i < used; ++i) {
    const int32_t word = words[1 + i];
    const uint64_t user = user_row[word];
    uint64_t row_word[kInFlight];
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) row_word[u] = (held >> u & 1) != 0 ? rows[u][word] : 0;
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) {
      if ((row_word[u] & user) != user) held &= ~(1u << u);
    }
  }
  const auto first_used = [&](int64_t request) {
    const int32_t* its_words = all_used + request * (1 + at.words);
    return its_words[0] != 0 ? its_words[1] : 0;
  };
  return held |
         later_row_holds<kStride>(
             at.bitmask, beam, first, waiting, passes & ~held,
             [&](int64_t id, int64_t request) {
               return table[id * at.words + first_used(request)];
             },
             [&](int64_t id, int64_t request, uint64_t word) {
               const uint64_t* user = all_users + request * at.words;
               const uint64_t asked = user[first_used(request)];
               return (word & asked) == asked &&
                      contains_all(table + id * at.words, user, static_cast<int32_t>(at.words));
             });
}

// All lanes of a warp call this together; each has its own beam row and children.
template <int kStride>
__device__ uint32_t test_set(const AdmissionSet& set, const BeamRow& beam, uint32_t first,
                             Waiting& waiting, uint32_t passes) {
  const int lane = threadIdx.x % kWarp;
  const uint8_t* star = in_device_memory(set.star);
  int32_t ids[kInFlight];
  first_rows<kStride>(set.rows, first, passes, ids);
  uint32_t waits = 0;
#pragma unroll
  for (int u = 0; u < kInFlight; ++u) {
    if ((passes >> u & 1) != 0 && star[ids[u]] == 0) waits |= 1u << u;
  }
  const int total = enlist(waits, waiting, [&](int u, int at) { waiting.next[at] = ids[u]; });
#pragma unroll 1
  for (int done = 0; done < total; done += kWarp) {
    const int at = done + lane;
    const int place = at < total ? waiting.places[at] : lane;
    // The lane whose child this is may have another request than this lane.
    const int32_t request = __shfl_sync(kAllLanes, beam.request, place % kWarp);
    if (at < total) {
      waiting.found[place] = row_holds_any(set, waiting.next[at], queries_of(set, request));
    }
  }
  __syncwarp();
  uint32_t fails = 0;
#pragma unroll
  for (int u = 0; u < kInFlight; ++u) {
    if ((waits >> u & 1) != 0 && waiting.found[u * kWarp + lane] == 0) fails |= 1u << u;
  }
  __syncwarp();
  const uint32_t held = later_row_holds<kStride>(
      set.rows, beam, first, waiting, fails,
      [&](int64_t id, int64_t) { return uint64_t{star[id]}; },
      [&](int64_t id, int64_t request, uint64_t holds_star) {
        return holds_star != 0 || row_holds_any(set, id, queries_of(set, request));
      });
  return passes & ~(fails & ~held);
}

// Returns the `asked` leaves that have a rule that their user passes. A lane tests the first rules
// of its leaves, which decides nearly all. Then all lanes share the other rules of one leaf after
// another. All lanes call it together.
template <int kStride>
__device__ uint32_t test_rules(const Admission& at, const BeamRow& beam, uint32_t first,
                               uint32_t asked) {
  const int32_t* ids = in_device_memory(at.leaf_rules.ids);
  const auto mask_of = [&](int32_t rule, int32_t request) {
    const int64_t group = (request >> 4) * at.eligible_stride;
    return in_device_memory(at.eligible)[group + at.internal_nodes + rule];
  };
  int32_t begin[kInFlight], count[kInFlight];
#pragma unroll
  for (int u = 0; u < kInFlight; ++u) {
    const int32_t* offsets = in_device_memory(at.leaf_rules.offsets) + first + u * kStride;
    begin[u] = (asked >> u & 1) != 0 ? offsets[0] : 0;
    count[u] = (asked >> u & 1) != 0 ? offsets[1] - begin[u] : 0;
  }
  uint32_t held = 0;
#pragma unroll 1
  for (int i = 0; i < kAlone; ++i) {
    int32_t found[kInFlight];  // a rule, then its mask
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) found[u] = i < count[u] ? ids[begin[u] + i] : kNoId;
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) {
      found[u] = found[u] != kNoId ? mask_of(found[u], beam.request) : 0;
    }
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) held |= (found[u] >> (beam.request & 15) & 1) << u;
  }
  const int lane = threadIdx.x % kWarp;
#pragma unroll 1
  for (int u = 0; u < kInFlight; ++u) {
    const int32_t from = picked(begin, u) + kAlone;
    const int32_t until = (held >> u & 1) == 0 ? picked(begin, u) + picked(count, u) : 0;
#pragma unroll 1
    for (uint32_t owners = __ballot_sync(kAllLanes, from < until); owners != 0;
         owners &= owners - 1) {
      const int owner = __ffs(static_cast<int>(owners)) - 1;
      const int32_t end = __shfl_sync(kAllLanes, until, owner);
      const int32_t request = __shfl_sync(kAllLanes, beam.request, owner);
      bool passes = false;
#pragma unroll 1
      for (int32_t rule = __shfl_sync(kAllLanes, from, owner); rule < end && !passes;
           rule += kWarp) {
        const int32_t mask = rule + lane < end ? mask_of(ids[rule + lane], request) : 0;
        passes = __any_sync(kAllLanes, (mask >> (request & 15) & 1) != 0);
      }
      if (passes && lane == owner) held |= 1u << u;
    }
  }
  return held;
}

// Reads a bit per inner node: entry j leads to node j + 1. A row's children are all of one level.
template <int kStride>
__device__ uint32_t test_eligible(const Admission& at, const BeamRow& beam, uint32_t first,
                                  uint32_t passes) {
  const bool leaves = beam.begin + 1 >= at.internal_nodes;
  const uint16_t* masks =
      in_device_memory(at.eligible) + (beam.request >> 4) * at.eligible_stride + 1;
  uint32_t inner = 0;
#pragma unroll
  for (int u = 0; u < kInFlight; ++u) {
    const uint32_t mask = !leaves && (passes >> u & 1) != 0 ? masks[first + u * kStride] : 0;
    inner |= (mask >> (beam.request & 15) & 1) << u;
  }
  if (!__any_sync(kAllLanes, leaves)) return inner;
  const uint32_t leaf = first + 1 - static_cast<uint32_t>(at.internal_nodes);
  return inner | test_rules<kStride>(at, beam, leaf, leaves ? passes : 0);
}

template <int kStride>
__device__ uint32_t test_children(const Admission& at, const BeamRow& beam, uint32_t first,
                                  Waiting& waiting) {
  uint32_t passes = 0;
#pragma unroll
  for (int u = 0; u < kInFlight; ++u) {
    if (first + u * kStride < beam.end) passes |= 1u << u;
  }
  if (at.eligible != nullptr) return test_eligible<kStride>(at, beam, first, passes);
  if (at.words > 0) passes = test_bitmasks<kStride>(at, beam, first, waiting, passes);
#pragma unroll 1
  for (int64_t s = 0; s < at.num_sets; ++s) {
    passes = test_set<kStride>(at.sets[s], beam, first, waiting, passes);
  }
  return passes;
}

}  // namespace grace
