// The masks of the predicates' rows: which of 16 requests pass each bitmask row and each set rule.
// kernels/eligibility/bits.py and lists.py define them.
//
// Attributes: a thread has several rows in flight. A word in which no user of the group has bits is
// never read, and users with equal bits are tested once. Sets: a warp walks a run of a posting
// list, so that a value that many rules name does not keep one warp busy.
#include <algorithm>
#include <cstdint>

#include "cluster.cuh"
#include "eligibility.cuh"

namespace grace::eligibility {
namespace {

constexpr int kBlock = 256;  // threads of a block
constexpr int kRows = 4;     // rows of a thread, in flight at once
constexpr int kRun = 512;    // most postings of a run
constexpr unsigned kMostBlocks = 1024;

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

__global__ void __launch_bounds__(kBlock)
    test_rows(AttributeTable table, const Asked* __restrict__ all_asked, int64_t requests,
              uint16_t* masks) {
  const int64_t count = table.rules.rows;
  const int64_t first = int64_t{blockIdx.x} * (kBlock * kRows) + threadIdx.x;
  const int64_t group = blockIdx.y;
  uint32_t passes[kRows];
  const uint64_t* rows[kRows];
#pragma unroll
  for (int u = 0; u < kRows; ++u) {
    const int64_t row = first + u * kBlock;
    passes[u] = requests_of_group(requests, group);
    rows[u] = table.words + (row < count ? row : 0) * table.row_stride;
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
    if (row < count) masks[group * count + row] = static_cast<uint16_t>(passes[u]);
  }
}

// The posting lists of one side of a set, and the runs that users' values cut out of them.
struct Side {
  const int64_t* offsets;
  const int32_t* postings;
  Run* runs;
  int32_t* count;
};

struct Set {
  SetQueries queries;
  const uint8_t* kinds;
  int64_t rules;
  int64_t missing_passes;
  Side sides[2];  // include, exclude
  uint16_t* masks;
};

// A launch works on all of them: its blocks' last axis has the sets.
struct Sets {
  Set each[kMostSets];
};

// The masks before any posting list is walked: rules without an include list include every user.
// Those with an exclude list leave out users without a value, unless these pass.
__global__ void __launch_bounds__(kBlock) open_set_rows(Sets sets, int64_t requests) {
  const Set& set = sets.each[blockIdx.z];
  if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x < 2) *set.sides[threadIdx.x].count = 0;
  const int lane = threadIdx.x % kWarp;
  const int64_t group = blockIdx.y, request = group * kGroup + lane;
  const uint32_t all = requests_of_group(requests, group);
  const bool has_value = lane < kGroup && request < requests &&
                         set.queries.offsets[request + 1] > set.queries.offsets[request];
  const uint32_t present = __ballot_sync(kAllLanes, has_value);
  const uint32_t allowed = set.missing_passes != 0 ? all : present;
  uint16_t* const masks = set.masks + group * set.rules;
#pragma unroll
  for (int u = 0; u < kRows; ++u) {
    const int64_t rule = (int64_t{blockIdx.x} * kRows + u) * kBlock + threadIdx.x;
    if (rule >= set.rules) continue;
    const uint8_t kind = set.kinds[rule];
    const uint32_t open = (kind & kHasExclude) != 0 ? allowed : all;
    masks[rule] = static_cast<uint16_t>((kind & kHasInclude) != 0 ? 0u : open);
  }
}

// Cuts the posting lists of the users' values into runs, in any order.
// Blocks [slices, requests, sets * sides].
__global__ void __launch_bounds__(kBlock) cut_into_runs(Sets sets) {
  const SetQueries& queries = sets.each[blockIdx.z / 2].queries;
  const Side& side = sets.each[blockIdx.z / 2].sides[blockIdx.z % 2];
  if (side.runs == nullptr) return;
  const int lane = threadIdx.x % kWarp;
  const int32_t request = static_cast<int32_t>(blockIdx.y);
  const int32_t end = queries.value_offsets[request + 1];
  // All lanes of a warp take part in each of its rounds.
  for (int32_t first = queries.value_offsets[request] + blockIdx.x * kBlock + threadIdx.x - lane;
       first < end; first += gridDim.x * kBlock) {
    const int32_t value = first + lane < end ? queries.values[first + lane] : -1;
    const int64_t begin = value >= 0 ? side.offsets[value] : 0;
    const int64_t postings = value >= 0 ? side.offsets[value + 1] - begin : 0;
    const int32_t own = static_cast<int32_t>((postings + kRun - 1) / kRun);
    const int32_t until = static_cast<int32_t>(sum_until_lane(own));
    int32_t place = lane == kWarp - 1 && until > 0 ? atomicAdd(side.count, until) : 0;
    place = __shfl_sync(kAllLanes, place, kWarp - 1) + until - own;
    for (int32_t i = 0; i < own; ++i) {
      const int64_t done = int64_t{i} * kRun;
      const int64_t left = postings - done;
      side.runs[place + i] = {begin + done, static_cast<int32_t>(left < kRun ? left : kRun),
                              request};
    }
  }
}

// Gives the requests of all runs to the rules that these name, or takes them away. Two masks share
// a word. A warp has one run after another. Blocks [slices, 1, sets].
template <bool kTakeAway>
__global__ void __launch_bounds__(kBlock) walk_runs(Sets sets) {
  const Set& set = sets.each[blockIdx.z];
  const Side& side = set.sides[kTakeAway ? 1 : 0];
  const int32_t* const postings = side.postings;
  const int lane = threadIdx.x % kWarp;
  const int32_t count = *side.count;
  const int32_t warps = static_cast<int32_t>(gridDim.x * kBlock / kWarp);
#pragma unroll 1
  for (int32_t at = (blockIdx.x * kBlock + threadIdx.x) / kWarp; at < count; at += warps) {
    const Run run = side.runs[at];
    uint16_t* own = set.masks + run.request / kGroup * set.rules;
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

// Returns the most runs of a side: a request names a value once, so it walks no posting twice.
int64_t most_runs(const PostingLists& lists, int64_t values, int64_t requests) {
  return lists.size == 0 || values == 0 ? 0 : values + requests * (lists.size / kRun);
}

Side side_of(Call& call, const PostingLists& lists, int64_t most, int32_t* count) {
  return {lists.offsets, lists.rules, most == 0 ? nullptr : call.room<Run>(most), count};
}

}  // namespace

const uint16_t* attribute_rows(Call& call, const AttributeTable& table) {
  const int64_t rows = table.rules.rows, words = table.words_per_row;
  const int64_t requests = call.batch.requests;
  const unsigned groups = static_cast<unsigned>(call.groups);
  Asked* const asked = call.room<Asked>(call.groups * words * kGroup);
  uint16_t* const masks = call.room<uint16_t>(call.groups * rows);
  LaunchShape shape{};
  shape.threads = kBlock;
  shape.blocks = dim3(blocks_for(words * kWarp), groups);
  call.launch(kAttributeStep, "list_asked", shape, list_asked, call.batch.bitmask, requests, words,
              asked);
  shape.blocks = dim3(blocks_for((rows + kRows - 1) / kRows), groups);
  call.launch(kAttributeStep, "test_rows", shape, test_rows, table, asked, requests, masks);
  return masks;
}

void set_rows(Call& call, const SetLists* lists, const SetQueries* queries, int64_t count,
              const uint16_t** masks) {
  Sets sets{};
  int64_t rules = 0, values = 0, most[2] = {0, 0};  // of any set
  int32_t* const counts = call.room<int32_t>(2 * count);
  for (int64_t i = 0; i < count; ++i) {
    const SetLists& own = lists[i];
    const int64_t own_values = queries[i].num_values;
    const int64_t included = most_runs(own.include, own_values, call.batch.requests);
    const int64_t excluded = most_runs(own.exclude, own_values, call.batch.requests);
    uint16_t* const room = call.room<uint16_t>(call.groups * own.rules.rows);
    sets.each[i] = {queries[i],
                    own.kinds,
                    own.rules.rows,
                    own.missing_passes_exclude,
                    {side_of(call, own.include, included, counts + 2 * i),
                     side_of(call, own.exclude, excluded, counts + 2 * i + 1)},
                    room};
    masks[i] = room;
    rules = std::max(rules, own.rules.rows);
    values = std::max(values, own_values);
    most[0] = std::max(most[0], included);
    most[1] = std::max(most[1], excluded);
  }
  const unsigned all = static_cast<unsigned>(count);
  LaunchShape shape{};
  shape.threads = kBlock;
  shape.blocks =
      dim3(blocks_for((rules + kRows - 1) / kRows), static_cast<unsigned>(call.groups), all);
  call.launch(kSetStep, "open_set_rows", shape, open_set_rows, sets, call.batch.requests);
  if (most[0] + most[1] == 0) return;
  const unsigned requests = static_cast<unsigned>(call.batch.requests);
  shape.blocks = dim3(std::min(blocks_for(values), 16u), requests, 2 * all);
  call.launch(kSetStep, "cut_into_runs", shape, cut_into_runs, sets);
  for (int side = 0; side < 2; ++side) {
    if (most[side] == 0) continue;
    shape.blocks = dim3(std::min(blocks_for(most[side] * kWarp), kMostBlocks), 1, all);
    call.launch(kSetStep, "walk_runs", shape, side == 0 ? walk_runs<false> : walk_runs<true>, sets);
  }
}

}  // namespace grace::eligibility
