// The masks of the predicates' rows: which of 16 requests pass each row of bits, lists or numbers.
// kernels/eligibility/bits.py, lists.py and interval.py define them.
//
// Attributes and intervals: a thread has several rows in flight. A word in which no user of the
// group has bits is never read, and users with equal bits are tested once. Lists: a warp walks a
// run of a posting list, so that a value that many rows name does not keep one warp busy.
#include <algorithm>

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

// Intervals that a launch works on: its blocks' last axis has them.
struct Intervals {
  struct {
    IntervalTable table;
    const double* numbers;
    uint16_t* masks;
  } each[kMostTables];
};

__global__ void __launch_bounds__(kBlock) test_intervals(Intervals intervals, int64_t requests) {
  const auto& own = intervals.each[blockIdx.z];
  const int64_t group = blockIdx.y, begin = group * kGroup, count = own.table.rules.rows;
  const int64_t asking = requests - begin < kGroup ? requests - begin : kGroup;
  const int64_t first = int64_t{blockIdx.x} * (kBlock * kRows) + threadIdx.x;
  Interval held[kRows];
#pragma unroll
  for (int u = 0; u < kRows; ++u) {
    const int64_t row = first + u * kBlock;
    if (row < count) held[u] = own.table.rows[row];
  }
#pragma unroll
  for (int u = 0; u < kRows; ++u) {
    const int64_t row = first + u * kBlock;
    if (row >= count) continue;
    own.masks[group * count + row] = static_cast<uint16_t>(
        users_within(held[u], own.numbers + begin, asking, own.table.missing_passes != 0));
  }
}

// Tables that a launch works on: its blocks' last axis has them.
struct Lists {
  struct Own {
    ListTable table;
    ListQueries queries;
    Run* runs[2];       // that the values of requests cut out of posting lists: include, exclude
    int32_t* count[2];  // of runs
    uint16_t* masks;
  } each[kMostTables];
};

// The masks before any posting list is walked.
__global__ void __launch_bounds__(kBlock) open_list_rows(Lists lists, int64_t requests) {
  const Lists::Own& own = lists.each[blockIdx.z];
  if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x < 2) *own.count[threadIdx.x] = 0;
  const int lane = threadIdx.x % kWarp;
  const int64_t group = blockIdx.y, request = group * kGroup + lane, rows = own.table.rules.rows;
  const uint32_t all = requests_of_group(requests, group);
  const bool asks = lane < kGroup && request < requests;
  const uint8_t opens = asks ? own.queries.open[request] : 0;
  const uint32_t with_include = __ballot_sync(kAllLanes, (opens & kHasInclude) != 0);
  const uint32_t with_exclude = __ballot_sync(kAllLanes, (opens & kHasExclude) != 0);
  uint16_t* const masks = own.masks + group * rows;
#pragma unroll
  for (int u = 0; u < kRows; ++u) {
    const int64_t row = (int64_t{blockIdx.x} * kRows + u) * kBlock + threadIdx.x;
    if (row >= rows) continue;
    const uint8_t kind = own.table.kinds[row];
    const uint32_t open = (kind & kHasExclude) != 0 ? with_exclude : all;
    masks[row] = static_cast<uint16_t>((kind & kHasInclude) != 0 ? with_include : open);
  }
}

// Cuts the posting lists of the requests' values into runs, in any order.
// Blocks [slices, requests, tables * sides].
__global__ void __launch_bounds__(kBlock) cut_into_runs(Lists lists) {
  const Lists::Own& own = lists.each[blockIdx.z / 2];
  const int side = blockIdx.z % 2;
  Run* const runs = own.runs[side];
  if (runs == nullptr) return;
  const NamedValues& named = side == 0 ? own.queries.included : own.queries.excluded;
  const PostingLists& postings = side == 0 ? own.table.include : own.table.exclude;
  const int lane = threadIdx.x % kWarp;
  const int32_t request = static_cast<int32_t>(blockIdx.y);
  const int32_t end = named.offsets[request + 1];
  // All lanes of a warp take part in each of its rounds.
  for (int32_t first = named.offsets[request] + blockIdx.x * kBlock + threadIdx.x - lane;
       first < end; first += gridDim.x * kBlock) {
    const int32_t value = first + lane < end ? named.ids[first + lane] : -1;
    const int64_t begin = value >= 0 ? postings.offsets[value] : 0;
    const int64_t length = value >= 0 ? postings.offsets[value + 1] - begin : 0;
    const int32_t cut = static_cast<int32_t>((length + kRun - 1) / kRun);
    const int32_t until = static_cast<int32_t>(sum_until_lane(cut));
    int32_t place = lane == kWarp - 1 && until > 0 ? atomicAdd(own.count[side], until) : 0;
    place = __shfl_sync(kAllLanes, place, kWarp - 1) + until - cut;
    for (int32_t i = 0; i < cut; ++i) {
      const int64_t done = int64_t{i} * kRun;
      const int64_t left = length - done;
      runs[place + i] = {begin + done, static_cast<int32_t>(left < kRun ? left : kRun), request};
    }
  }
}

// Gives the requests of all runs to the rows that these name, or takes them away. Two masks share
// a word. A warp has one run after another. Blocks [slices, 1, tables].
template <bool kTakeAway>
__global__ void __launch_bounds__(kBlock) walk_runs(Lists lists) {
  constexpr int side = kTakeAway ? 1 : 0;
  const Lists::Own& own = lists.each[blockIdx.z];
  const Run* const runs = own.runs[side];
  const int32_t* const postings = kTakeAway ? own.table.exclude.rows : own.table.include.rows;
  const int lane = threadIdx.x % kWarp;
  const int32_t count = *own.count[side];
  const int32_t warps = static_cast<int32_t>(gridDim.x * kBlock / kWarp);
#pragma unroll 1
  for (int32_t at = (blockIdx.x * kBlock + threadIdx.x) / kWarp; at < count; at += warps) {
    const Run run = runs[at];
    uint16_t* const masks = own.masks + run.request / kGroup * own.table.rules.rows;
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
        const uintptr_t place = reinterpret_cast<uintptr_t>(masks + named[u]);
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

// Takes from each grouped row the requests that one of its groups fails.
// Blocks [slices, groups, tables].
__global__ void __launch_bounds__(kBlock) need_groups(Lists lists) {
  const Lists::Own& own = lists.each[blockIdx.z];
  const int64_t at = int64_t{blockIdx.x} * kBlock + threadIdx.x;
  if (at >= own.table.num_grouped) return;
  uint16_t* const masks = own.masks + blockIdx.y * own.table.rules.rows;
  uint32_t passes = masks[own.table.grouped[at]];
  const int32_t end = own.table.group_offsets[at + 1];
  for (int32_t row = own.table.group_offsets[at]; row < end; ++row) passes &= masks[row];
  masks[own.table.grouped[at]] = static_cast<uint16_t>(passes);
}

unsigned blocks_for(int64_t threads) { return std::max(blocks_of(threads, kBlock), 1u); }

// Returns the most runs of a side: a request names a value once, so it walks no posting twice.
int64_t most_runs(const PostingLists& lists, const NamedValues& named, int64_t requests) {
  return lists.size == 0 || named.size == 0 ? 0 : named.size + requests * (lists.size / kRun);
}

}  // namespace

const uint16_t* attribute_rows(Call& call, const AttributeTable& table) {
  const int64_t rows = table.rules.rows, words = table.words_per_row;
  const int64_t requests = call.batch.requests;
  const unsigned groups = static_cast<unsigned>(call.groups);
  Asked* const asked = call.room<Asked>(call.groups * words * kGroup);
  uint16_t* const masks = call.room<uint16_t>(call.groups * rows);
  call.launch(kNumberStep, "list_asked", {dim3(blocks_for(words * kWarp), groups), kBlock},
              list_asked, call.batch.bitmask, requests, words, asked);
  const dim3 blocks(blocks_for((rows + kRows - 1) / kRows), groups);
  call.launch(kNumberStep, "test_rows", {blocks, kBlock}, test_rows, table, asked, requests, masks);
  return masks;
}

void interval_rows(Call& call, const IntervalTable* tables, const double* const* numbers,
                   int64_t count, const uint16_t** masks) {
  Intervals intervals{};
  int64_t rows = 0;  // of any table
  for (int64_t i = 0; i < count; ++i) {
    uint16_t* const room = call.room<uint16_t>(call.groups * tables[i].rules.rows);
    intervals.each[i] = {tables[i], numbers[i], room};
    masks[i] = room;
    rows = std::max(rows, tables[i].rules.rows);
  }
  const dim3 blocks(blocks_for((rows + kRows - 1) / kRows), static_cast<unsigned>(call.groups),
                    static_cast<unsigned>(count));
  call.launch(kNumberStep, "test_intervals", {blocks, kBlock}, test_intervals, intervals,
              call.batch.requests);
}

void list_rows(Call& call, const ListTable* tables, const ListQueries* queries, int64_t count,
               const uint16_t** masks) {
  Lists lists{};
  int64_t rows = 0, grouped = 0, values = 0, most[2] = {0, 0};  // of any table
  int32_t* const counts = call.room<int32_t>(2 * count);
  for (int64_t i = 0; i < count; ++i) {
    const NamedValues &included = queries[i].included, &excluded = queries[i].excluded;
    const int64_t own_most[2] = {most_runs(tables[i].include, included, call.batch.requests),
                                 most_runs(tables[i].exclude, excluded, call.batch.requests)};
    Lists::Own& own = lists.each[i];
    own.table = tables[i];
    own.queries = queries[i];
    masks[i] = own.masks = call.room<uint16_t>(call.groups * tables[i].rules.rows);
    for (int side = 0; side < 2; ++side) {
      own.count[side] = counts + 2 * i + side;
      own.runs[side] = own_most[side] == 0 ? nullptr : call.room<Run>(own_most[side]);
      most[side] = std::max(most[side], own_most[side]);
    }
    rows = std::max(rows, tables[i].rules.rows);
    grouped = std::max(grouped, tables[i].num_grouped);
    values = std::max({values, included.size, excluded.size});
  }
  const unsigned all = static_cast<unsigned>(count), groups = static_cast<unsigned>(call.groups);
  const auto launch = [&](const char* what, unsigned first, unsigned second, unsigned third,
                          const auto& kernel, const auto&... arguments) {
    call.launch(kListStep, what, {dim3(first, second, third), kBlock}, kernel, lists, arguments...);
  };
  launch("open_list_rows", blocks_for((rows + kRows - 1) / kRows), groups, all, open_list_rows,
         call.batch.requests);
  if (most[0] + most[1] > 0) {
    const unsigned requests = static_cast<unsigned>(call.batch.requests);
    launch("cut_into_runs", std::min(blocks_for(values), 16u), requests, 2 * all, cut_into_runs);
  }
  for (int side = 0; side < 2; ++side) {
    if (most[side] == 0) continue;
    const auto walk = side == 0 ? walk_runs<false> : walk_runs<true>;
    launch("walk_runs", std::min(blocks_for(most[side] * kWarp), kMostBlocks), 1, all, walk);
  }
  if (grouped > 0) launch("need_groups", blocks_for(grouped), groups, all, need_groups);
}

}  // namespace grace::eligibility
