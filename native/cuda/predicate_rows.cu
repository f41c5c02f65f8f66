// The masks of the predicates' rows: which of 16 requests pass each bitmask row and each set rule.
// kernels/eligibility/attributes.py and sets.py define them.
//
// Attributes: a thread has several rows in flight. A word in which no user of the group has bits is
// never read, and users with equal bits are tested once. Sets: a warp walks a run of a posting
// list, so that a value that many rules name does not keep one warp busy.
#include <cstdint>

#include "grace/abi.h"
#include "launch.cuh"

namespace {

using grace::kAllLanes;
using grace::kWarp;

constexpr int kGroup = 16;   // requests of a mask
constexpr int kBlock = 256;  // threads of a block
constexpr int kRows = 4;     // rows of a thread, in flight at once
constexpr int kRun = 512;    // most postings of a run
constexpr int kMostBlocks = 1024;
constexpr uint8_t kHasInclude = 1, kHasExclude = 2;

// The distinct bits of one word that users of a group have, and the requests that have them.
struct alignas(16) Asked {
  uint64_t bits;
  uint32_t requests;
  uint32_t distinct;  // in a word's first entry: its number of entries
};

// Part of the posting list of a value that a request has.
struct alignas(16) Run {
  int64_t begin;
  int32_t count;
  int32_t request;
};

__device__ uint32_t requests_of_group(int64_t requests, int64_t group) {
  const int64_t left = requests - group * kGroup;
  return left >= kGroup ? 0xffffu : (1u << left) - 1;
}

// Lists what each word's users ask for. A warp has one word; blocks [words / warps, groups].
__global__ void __launch_bounds__(kBlock)
    list_asked(const uint64_t* users, int64_t requests, int64_t words, Asked* asked) {
  const int lane = threadIdx.x % kWarp;
  const int64_t word = (int64_t{blockIdx.x} * kBlock + threadIdx.x) / kWarp;
  const int64_t request = int64_t{blockIdx.y} * kGroup + lane;
  const bool there = word < words && lane < kGroup && request < requests;
  const uint64_t bits = there ? users[request * words + word] : 0;
  uint32_t same = 0;
  for (int other = 0; other < kGroup; ++other) {
    if (__shfl_sync(kAllLanes, bits, other) == bits) same |= 1u << other;
  }
  const uint32_t before = (1u << lane) - 1;
  const uint32_t firsts = __ballot_sync(kAllLanes, bits != 0 && (same & before) == 0);
  if (word >= words) return;
  Asked* own = asked + (blockIdx.y * words + word) * kGroup;
  if (firsts == 0 && lane == 0) own[0] = {0, 0, 0};
  if ((firsts >> lane & 1) != 0) {
    own[__popc(firsts & before)] = {bits, same, static_cast<uint32_t>(__popc(firsts))};
  }
}

struct Table {
  const uint64_t* words;
  int64_t rows;
  int64_t words_per_row;
  int64_t row_stride;
  int64_t word_stride;
};

__global__ void __launch_bounds__(kBlock)
    attribute_rows(Table table, const Asked* __restrict__ all_asked, int64_t requests,
                   uint16_t* masks) {
  const int64_t first = int64_t{blockIdx.x} * (kBlock * kRows) + threadIdx.x;
  const int64_t group = blockIdx.y;
  uint32_t passes[kRows];
  const uint64_t* rows[kRows];
#pragma unroll
  for (int u = 0; u < kRows; ++u) {
    const int64_t row = first + u * kBlock;
    passes[u] = requests_of_group(requests, group);
    rows[u] = table.words + (row < table.rows ? row : 0) * table.row_stride;
  }
  const Asked* asked = all_asked + group * table.words_per_row * kGroup;
#pragma unroll 1
  for (int64_t w = 0; w < table.words_per_row; ++w, asked += kGroup) {
    const uint32_t distinct = asked[0].distinct;
    if (distinct == 0) continue;
    uint64_t held[kRows];
#pragma unroll
    for (int u = 0; u < kRows; ++u) held[u] = __ldcs(rows[u] + w * table.word_stride);
#pragma unroll 1
    for (uint32_t i = 0; i < distinct; ++i) {
      const uint64_t bits = asked[i].bits;
      const uint32_t requests_that_ask = asked[i].requests;
#pragma unroll
      for (int u = 0; u < kRows; ++u) {
        if ((bits & ~held[u]) != 0) passes[u] &= ~requests_that_ask;
      }
    }
  }
#pragma unroll
  for (int u = 0; u < kRows; ++u) {
    const int64_t row = first + u * kBlock;
    if (row < table.rows) masks[group * table.rows + row] = static_cast<uint16_t>(passes[u]);
  }
}

struct SetQueries {
  const int32_t* offsets;        // [requests + 1]: whether a request has any value
  const int32_t* value_offsets;  // [requests + 1]
  const int32_t* values;
  int64_t requests;
};

// The masks before any posting list is walked: rules without an include list include every user.
// Those with an exclude list leave out users without a value, unless these pass.
__global__ void __launch_bounds__(kBlock)
    open_set_rows(SetQueries queries, const uint8_t* kinds, int64_t rules, bool missing_passes,
                  uint16_t* masks) {
  const int lane = threadIdx.x % kWarp;
  const int64_t group = blockIdx.y, request = group * kGroup + lane;
  const uint32_t all = requests_of_group(queries.requests, group);
  const bool has_value = lane < kGroup && request < queries.requests &&
                         queries.offsets[request + 1] > queries.offsets[request];
  const uint32_t present = __ballot_sync(kAllLanes, has_value);
  const uint32_t allowed = missing_passes ? all : present;
#pragma unroll
  for (int u = 0; u < kRows; ++u) {
    const int64_t rule = (int64_t{blockIdx.x} * kRows + u) * kBlock + threadIdx.x;
    if (rule >= rules) continue;
    const uint8_t kind = kinds[rule];
    const uint32_t open = (kind & kHasExclude) != 0 ? allowed : all;
    masks[group * rules + rule] = static_cast<uint16_t>((kind & kHasInclude) != 0 ? 0u : open);
  }
}

struct Runs {
  Run* runs;
  int32_t* count;  // 0 at first
};

// Cuts the posting lists of the users' values into runs, in any order. Blocks [slices, requests].
__global__ void __launch_bounds__(kBlock)
    cut_into_runs(SetQueries queries, const int64_t* offsets, Runs out) {
  const int lane = threadIdx.x % kWarp;
  const int32_t request = static_cast<int32_t>(blockIdx.y);
  const int32_t end = queries.value_offsets[request + 1];
  // All lanes of a warp take part in each of its rounds.
  for (int32_t first = queries.value_offsets[request] + blockIdx.x * kBlock + threadIdx.x - lane;
       first < end; first += gridDim.x * kBlock) {
    const int32_t value = first + lane < end ? queries.values[first + lane] : -1;
    const int64_t begin = value >= 0 ? offsets[value] : 0;
    const int64_t postings = value >= 0 ? offsets[value + 1] - begin : 0;
    const int32_t own = static_cast<int32_t>((postings + kRun - 1) / kRun);
    int32_t until = own;  // the runs of this lane and those before it
#pragma unroll
    for (int apart = 1; apart < kWarp; apart *= 2) {
      const int32_t before = __shfl_up_sync(kAllLanes, until, apart);
      if (lane >= apart) until += before;
    }
    int32_t place = lane == kWarp - 1 && until > 0 ? atomicAdd(out.count, until) : 0;
    place = __shfl_sync(kAllLanes, place, kWarp - 1) + until - own;
    for (int32_t i = 0; i < own; ++i) {
      const int64_t done = int64_t{i} * kRun;
      const int64_t left = postings - done;
      out.runs[place + i] = {begin + done, static_cast<int32_t>(left < kRun ? left : kRun),
                             request};
    }
  }
}

// Gives the requests of all runs to the rules that these name, or takes them away. Two masks share
// a word. A warp has one run after another.
template <bool kTakeAway>
__global__ void __launch_bounds__(kBlock)
    walk_runs(Runs listed, const int32_t* postings, int64_t rules, uint16_t* masks) {
  const int lane = threadIdx.x % kWarp;
  const int32_t count = *listed.count;
  const int32_t warps = static_cast<int32_t>(gridDim.x * kBlock / kWarp);
#pragma unroll 1
  for (int32_t at = (blockIdx.x * kBlock + threadIdx.x) / kWarp; at < count; at += warps) {
    const Run run = listed.runs[at];
    uint16_t* own = masks + run.request / kGroup * rules;
    const uint32_t request = 1u << run.request % kGroup;
#pragma unroll 1
    for (int32_t begin = lane; begin < run.count; begin += kRows * kWarp) {
      int32_t named[kRows];
#pragma unroll
      for (int u = 0; u < kRows; ++u) {
        const int32_t i = begin + u * kWarp;
        named[u] = i < run.count ? __ldcs(postings + run.begin + i) : -1;
      }
#pragma unroll
      for (int u = 0; u < kRows; ++u) {
        if (named[u] < 0) continue;
        const uintptr_t place = reinterpret_cast<uintptr_t>(own + named[u]);
        uint32_t* word = reinterpret_cast<uint32_t*>(place & ~uintptr_t{3});
        const uint32_t bit = (place & 2) != 0 ? request << 16 : request;
        if constexpr (kTakeAway) {
          atomicAnd(word, ~bit);
        } else {
          atomicOr(word, bit);
        }
      }
    }
  }
}

unsigned blocks_for(int64_t threads) {
  const int64_t blocks = (threads + kBlock - 1) / kBlock;
  return static_cast<unsigned>(blocks > 0 ? blocks : 1);
}

unsigned groups_of(int64_t requests) {
  return static_cast<unsigned>((requests + kGroup - 1) / kGroup);
}

unsigned at_most(unsigned blocks, unsigned most) { return blocks < most ? blocks : most; }

}  // namespace

// Writes masks[groups, rows] of a table of bitmask rows with any strides, in words.
//   asked  room for 16 bytes * [groups, words, 16]
GRACE_API int32_t grace_cuda_attribute_rows(void* stream, const uint64_t* table, int64_t rows,
                                            int64_t words, int64_t row_stride, int64_t word_stride,
                                            const uint64_t* users, int64_t requests, void* asked,
                                            uint16_t* masks) {
  return grace::guarded([&] {
    static_assert(sizeof(Asked) == 16, "kernels/eligibility/on_gpu.py has this size");
    const Table of{table, rows, words, row_stride, word_stride};
    Asked* const room = static_cast<Asked*>(asked);
    grace::LaunchShape shape{};
    shape.threads = kBlock;
    shape.blocks = dim3(blocks_for(words * kWarp), groups_of(requests));
    grace::launch("list_asked", stream, shape, list_asked, users, requests, words, room);
    shape.blocks = dim3(blocks_for((rows + kRows - 1) / kRows), groups_of(requests));
    grace::launch("attribute_rows", stream, shape, attribute_rows, of, room, requests, masks);
  });
}

// Writes masks[groups, rules] of a set's rules.
//   masks   aligned to 4 bytes, with room for whole words of two masks
//   runs    room for 16 bytes * [include_room + exclude_room]
//   counts  two zeros
GRACE_API int32_t grace_cuda_set_rows(void* stream, const int32_t* offsets,
                                      const int32_t* value_offsets, const int32_t* values,
                                      int64_t num_values, int64_t requests, const uint8_t* kinds,
                                      int64_t rules, int32_t missing_passes_exclude,
                                      const int64_t* include_offsets, const int32_t* include_rules,
                                      int64_t include_room, const int64_t* exclude_offsets,
                                      const int32_t* exclude_rules, int64_t exclude_room,
                                      void* runs, int32_t* counts, uint16_t* masks) {
  return grace::guarded([&] {
    static_assert(sizeof(Run) == 16, "kernels/eligibility/on_gpu.py has this size");
    const SetQueries queries{offsets, value_offsets, values, requests};
    grace::LaunchShape shape{};
    shape.threads = kBlock;
    shape.blocks = dim3(blocks_for((rules + kRows - 1) / kRows), groups_of(requests));
    grace::launch("open_set_rows", stream, shape, open_set_rows, queries, kinds, rules,
                  missing_passes_exclude != 0, masks);
    if (num_values == 0) return;
    const dim3 by_value(at_most(blocks_for(num_values), 16), static_cast<unsigned>(requests));
    const Runs included{static_cast<Run*>(runs), counts};
    const Runs excluded{static_cast<Run*>(runs) + include_room, counts + 1};
    if (include_room != 0) {
      shape.blocks = by_value;
      grace::launch("cut_into_runs", stream, shape, cut_into_runs, queries, include_offsets,
                    included);
      shape.blocks = dim3(at_most(blocks_for(include_room * kWarp), kMostBlocks));
      grace::launch("walk_runs", stream, shape, walk_runs<false>, included, include_rules, rules,
                    masks);
    }
    if (exclude_room != 0) {
      shape.blocks = by_value;
      grace::launch("cut_into_runs", stream, shape, cut_into_runs, queries, exclude_offsets,
                    excluded);
      shape.blocks = dim3(at_most(blocks_for(exclude_room * kWarp), kMostBlocks));
      grace::launch("walk_runs", stream, shape, walk_runs<true>, excluded, exclude_rules, rules,
                    masks);
    }
  });
}
