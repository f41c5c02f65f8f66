// The masks of rules, leaves and all other nodes, which kernels/eligibility/eligible_nodes.py
// defines: a mask has one bit for each of 16 requests.
//
// A step reads its lists once, from memory that is larger than the cache, and looks up masks that
// fit it. So lists are read past the cache, and each thread has several chains of offset, id and
// mask in flight. Most ranges are short: a thread has several whole ranges. What is left of a long
// one after some rounds, all lanes of its warp share.
#include <cstdint>

#include "grace/abi.h"
#include "launch.cuh"

namespace {

using grace::kAllLanes;
using grace::kWarp;

constexpr int kGroup = 16;   // requests of a mask
constexpr int kBlock = 256;  // threads of a block
constexpr int kRules = 4;    // rules of a thread
constexpr int kRangesOfLane = 4;
constexpr int kTile = 512;       // masks of a tile
constexpr int kMasksOfWord = 4;  // a tile's masks are read in words of 64 bits
constexpr int kGathers = 8;      // gathered masks of a lane, in flight at once
constexpr int kShort = 4;        // the most words of a range that one lane joins alone
constexpr int kMostPredicates = 8;

struct RowsOfRules {
  const uint16_t* masks;  // [groups, rows]
  int64_t rows;
  const int32_t* ids;  // each rule's row
  int64_t id_stride;
};

struct Predicates {
  RowsOfRules each[kMostPredicates];
  int32_t count;
};

// Reads the rows of kRules rules that follow each other, at once where they lie together; -1 where
// there are no more rules.
__device__ void read_ids(const RowsOfRules& rows, int64_t first, int64_t rules,
                         int32_t (&ids)[kRules]) {
  static_assert(kRules == 4, "an int4 has four ids");
  const int32_t* from = rows.ids + first * rows.id_stride;
  const bool together = rows.id_stride == 1 && reinterpret_cast<uintptr_t>(from) % 16 == 0;
  if (together && first + kRules <= rules) {
    const int4 all = __ldcs(reinterpret_cast<const int4*>(from));
    ids[0] = all.x, ids[1] = all.y, ids[2] = all.z, ids[3] = all.w;
    return;
  }
#pragma unroll
  for (int u = 0; u < kRules; ++u) {
    ids[u] = first + u < rules ? __ldcs(from + u * rows.id_stride) : -1;
  }
}

// Writes masks[groups, rules + 1]; the last rule stands for stopped ads, and nobody passes it.
// With `more`, rules must also have passed the predicates of an earlier launch.
__global__ void __launch_bounds__(kBlock)
    rule_masks(Predicates predicates, int64_t rules, int64_t requests, bool more, uint16_t* masks) {
  const int64_t group = blockIdx.y;
  const int64_t left = requests - group * kGroup;
  uint16_t* own = masks + group * (rules + 1);
  const int64_t first = (int64_t{blockIdx.x} * kBlock + threadIdx.x) * kRules;
  uint32_t passes[kRules];
#pragma unroll
  for (int u = 0; u < kRules; ++u) {
    passes[u] = left >= kGroup ? 0xffffu : (1u << left) - 1;
    if (first + u >= rules) passes[u] = 0;
    if (more && first + u < rules) passes[u] = own[first + u];
  }
#pragma unroll 1
  for (int32_t p = 0; p < predicates.count; p += 2) {
    const bool two = p + 1 < predicates.count;
    const RowsOfRules& one = predicates.each[p];
    const RowsOfRules& other = predicates.each[two ? p + 1 : p];
    int32_t ids[kRules], other_ids[kRules];
    read_ids(one, first, rules, ids);
    read_ids(other, first, rules, other_ids);
#pragma unroll
    for (int u = 0; u < kRules; ++u) {
      const uint32_t held = ids[u] >= 0 ? one.masks[group * one.rows + ids[u]] : 0xffffu;
      const uint32_t also =
          other_ids[u] >= 0 ? other.masks[group * other.rows + other_ids[u]] : 0xffffu;
      passes[u] &= held & also;
    }
  }
#pragma unroll
  for (int u = 0; u < kRules; ++u) {
    if (first + u <= rules) own[first + u] = static_cast<uint16_t>(passes[u]);
  }
}

// Range i has the members offsets[i] .. offsets[i + 1]. Member j's mask is masks[ids[j]], or
// masks[j] without ids.
struct Ranges {
  const int32_t* offsets;
  int64_t count;
  int32_t of_warp;  // the ranges of a warp
  const int32_t* ids;
  const uint16_t* masks;  // of group 0
  int64_t mask_stride;    // from group to group
  uint16_t* any;          // [count]: the OR of each range's masks
  int64_t any_stride;
};

// Writes the masks of the members first .. first + size into a tile.
__device__ void gather_tile(const int32_t* ids, const uint16_t* masks, int32_t first, int32_t size,
                            uint16_t* tile) {
  const int32_t lane = threadIdx.x % kWarp;
#pragma unroll 1
  for (int32_t begin = 0; begin < size; begin += kGathers * kWarp) {
    int32_t members[kGathers];
#pragma unroll
    for (int u = 0; u < kGathers; ++u) {
      const int32_t place = begin + u * kWarp + lane;
      members[u] = place < size ? __ldcs(ids + first + place) : -1;
    }
    uint16_t held[kGathers];
#pragma unroll
    for (int u = 0; u < kGathers; ++u) held[u] = members[u] >= 0 ? masks[members[u]] : 0;
#pragma unroll
    for (int u = 0; u < kGathers; ++u) tile[begin + u * kWarp + lane] = held[u];
  }
}

// Copies the words that hold so many masks into a tile.
__device__ void copy_tile(const uint64_t* words, int32_t size, uint64_t* tile) {
  const int32_t lane = threadIdx.x % kWarp, count = (size + kMasksOfWord - 1) / kMasksOfWord;
#pragma unroll
  for (int u = 0; u < kTile / kMasksOfWord / kWarp; ++u) {
    const int32_t place = u * kWarp + lane;
    if (place < count) tile[place] = words[place];
  }
}

// The masks from .. until of a tile.
struct Part {
  int32_t from, until;

  __device__ int32_t first_word() const { return from / kMasksOfWord; }
  __device__ int32_t last_word() const { return (until - 1) / kMasksOfWord; }
  // The bits of the first word's and of the last word's masks that belong to the part.
  __device__ uint64_t first_bits() const { return ~uint64_t{0} << (16 * (from % kMasksOfWord)); }
  __device__ uint64_t last_bits() const { return ~uint64_t{0} >> (16 * (-until & 3)); }
};

__device__ uint32_t joined(uint64_t word) {
  const uint32_t two = static_cast<uint32_t>(word | word >> 32);
  return (two | two >> 16) & 0xffffu;
}

// Adds the OR of each part's masks. All lanes of a warp share long parts.
__device__ void add_parts(const uint64_t* tile, const Part (&parts)[kRangesOfLane],
                          uint32_t (&any)[kRangesOfLane]) {
  const int32_t lane = threadIdx.x % kWarp;
  uint64_t word[kRangesOfLane];
#pragma unroll
  for (int u = 0; u < kRangesOfLane; ++u) {
    const Part& part = parts[u];
    word[u] = part.from < part.until ? tile[part.first_word()] & part.first_bits() : 0;
  }
#pragma unroll
  for (int u = 0; u < kRangesOfLane; ++u) {
    const Part& part = parts[u];
    const int32_t last = part.last_word();
    int32_t at = part.first_word() + 1;
    const bool is_long = part.from < part.until && last - at >= kShort;
    uint64_t found = 0;
#pragma unroll 1
    for (; at <= last && !is_long; ++at) {
      found |= word[u];
      word[u] = tile[at];
    }
    any[u] |= joined(found | (is_long ? 0 : word[u] & part.last_bits()));
#pragma unroll 1
    for (uint32_t left = __ballot_sync(kAllLanes, is_long); left != 0; left &= left - 1) {
      const int32_t owner = __ffs(static_cast<int>(left)) - 1;
      const Part its{__shfl_sync(kAllLanes, part.from, owner),
                     __shfl_sync(kAllLanes, part.until, owner)};
      uint64_t shared = 0;
#pragma unroll 1
      for (int32_t i = its.first_word() + lane; i <= its.last_word(); i += kWarp) {
        uint64_t bits = ~uint64_t{0};
        if (i == its.first_word()) bits &= its.first_bits();
        if (i == its.last_word()) bits &= its.last_bits();
        shared |= tile[i] & bits;
      }
      const uint32_t all = __reduce_or_sync(kAllLanes, joined(shared));
      if (lane == owner) any[u] |= all;
    }
  }
}

// A warp has several ranges, whose members follow each other. It reads these tile by tile, so that
// its loads are many and next to each other, whatever the lengths of the ranges.
template <bool kIds>
__global__ void __launch_bounds__(kBlock) any_of_ranges(Ranges of) {
  GRACE_BLOCK_MEMORY(memory);
  const int32_t lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  uint64_t* tile = reinterpret_cast<uint64_t*>(memory) + warp * (kTile / kMasksOfWord);
  const uint16_t* masks = of.masks + blockIdx.y * of.mask_stride;
  const int64_t first = (int64_t{blockIdx.x} * (kBlock / kWarp) + warp) * of.of_warp;
  if (first >= of.count) return;
  const int32_t own = static_cast<int32_t>(min(int64_t{of.of_warp}, of.count - first));
  const int32_t* offsets = of.offsets + first;
  const int32_t last = __ldcs(offsets + own);
  int32_t begin[kRangesOfLane], end[kRangesOfLane];
  uint32_t any[kRangesOfLane];
#pragma unroll
  for (int u = 0; u < kRangesOfLane; ++u) {
    const int32_t range = lane + u * kWarp;
    begin[u] = range < own ? __ldcs(offsets + range) : last;
    end[u] = range < own ? __ldcs(offsets + range + 1) : last;
    any[u] = 0;
  }
  int32_t size;
#pragma unroll 1
  for (int32_t at = __shfl_sync(kAllLanes, begin[0], 0); at < last; at += size) {
    // A tile begins with a whole word: perhaps some masks before the first member.
    const uintptr_t address = reinterpret_cast<uintptr_t>(masks + at);
    const int32_t before = kIds ? 0 : static_cast<int32_t>(address / 2 % kMasksOfWord);
    size = min(last - at, kTile - before);
    if constexpr (kIds) {
      gather_tile(of.ids, masks, at, size, reinterpret_cast<uint16_t*>(tile));
    } else {
      copy_tile(reinterpret_cast<const uint64_t*>(address - 2 * before), before + size, tile);
    }
    __syncwarp();
    Part parts[kRangesOfLane];
#pragma unroll
    for (int u = 0; u < kRangesOfLane; ++u) {
      parts[u] = {before + max(begin[u] - at, 0), before + min(end[u] - at, size)};
    }
    add_parts(tile, parts, any);
    __syncwarp();
  }
  uint16_t* out = of.any + blockIdx.y * of.any_stride + first;
#pragma unroll
  for (int u = 0; u < kRangesOfLane; ++u) {
    const int32_t range = lane + u * kWarp;
    if (range < own) out[range] = static_cast<uint16_t>(any[u]);
  }
}

}  // namespace

// Writes masks[groups, rules + 1], or with `more` only clears bits of what an earlier call wrote.
// `bytes` is the caller's size of Predicates.
GRACE_API int32_t grace_cuda_rule_masks(void* stream, int64_t bytes, const Predicates* predicates,
                                        int64_t rules, int64_t requests, int32_t more,
                                        uint16_t* masks) {
  return grace::guarded([&] {
    grace::require(bytes == sizeof(Predicates), "rule_masks: another layout of Predicates");
    constexpr int64_t per_block = kBlock * kRules;
    grace::LaunchShape shape{};
    shape.threads = kBlock;
    shape.blocks = dim3(static_cast<unsigned>(rules / per_block + 1),
                        static_cast<unsigned>((requests + kGroup - 1) / kGroup));
    grace::launch("rule_masks", stream, shape, rule_masks, *predicates, rules, requests, more != 0,
                  masks);
  });
}

// Writes any[groups, count], the OR of each range's masks. Distances between groups are in masks.
//   ids      null if the members themselves number the masks
//   of_warp  the ranges of a warp: 1 .. 128. Any value is right for any ranges.
GRACE_API int32_t grace_cuda_any_of_ranges(void* stream, const int32_t* offsets, int64_t count,
                                           const int32_t* ids, const uint16_t* masks,
                                           int64_t mask_stride, uint16_t* any, int64_t any_stride,
                                           int64_t groups, int32_t of_warp) {
  return grace::guarded([&] {
    grace::require(of_warp >= 1 && of_warp <= kRangesOfLane * kWarp,
                   "any_of_ranges: a warp has 1 to 128 ranges");
    const Ranges of{offsets, count, of_warp, ids, masks, mask_stride, any, any_stride};
    const int64_t of_block = int64_t{of_warp} * (kBlock / kWarp);
    grace::LaunchShape shape{};
    shape.threads = kBlock;
    shape.block_memory = kBlock / kWarp * kTile * sizeof(uint16_t);
    shape.blocks = dim3(static_cast<unsigned>((count + of_block - 1) / of_block),
                        static_cast<unsigned>(groups));
    if (ids != nullptr) {
      grace::launch("any_of_ranges", stream, shape, any_of_ranges<true>, of);
    } else {
      grace::launch("any_of_ranges", stream, shape, any_of_ranges<false>, of);
    }
  });
}
