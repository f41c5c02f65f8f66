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
constexpr int kRules = 4;    // rules of a thread, in flight at once
constexpr int kRangesOfLane = 4;
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

// Writes masks[groups, rules + 1]; the last rule stands for stopped ads, and nobody passes it.
// With `more`, rules must also have passed the predicates of an earlier launch.
__global__ void __launch_bounds__(kBlock)
    rule_masks(Predicates predicates, int64_t rules, int64_t requests, bool more, uint16_t* masks) {
  const int64_t group = blockIdx.y;
  const int64_t left = requests - group * kGroup;
  uint16_t* own = masks + group * (rules + 1);
  const int64_t first = int64_t{blockIdx.x} * (kBlock * kRules) + threadIdx.x;
  uint32_t passes[kRules];
#pragma unroll
  for (int u = 0; u < kRules; ++u) {
    const int64_t rule = first + u * kBlock;
    passes[u] = left >= kGroup ? 0xffffu : (1u << left) - 1;
    if (rule >= rules) passes[u] = 0;
    if (more && rule < rules) passes[u] = own[rule];
  }
#pragma unroll 1
  for (int32_t p = 0; p < predicates.count; p += 2) {
    const bool two = p + 1 < predicates.count;
    const RowsOfRules& one = predicates.each[p];
    const RowsOfRules& other = predicates.each[two ? p + 1 : p];
    int32_t ids[kRules], other_ids[kRules];
#pragma unroll
    for (int u = 0; u < kRules; ++u) {
      const int64_t rule = first + u * kBlock;
      ids[u] = rule < rules ? __ldcs(one.ids + rule * one.id_stride) : -1;
      other_ids[u] = two && rule < rules ? __ldcs(other.ids + rule * other.id_stride) : -1;
    }
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
    const int64_t rule = first + u * kBlock;
    if (rule <= rules) own[rule] = static_cast<uint16_t>(passes[u]);
  }
}

// Range i has the members offsets[i] .. offsets[i + 1]. Member j's mask is masks[ids[j]], or
// masks[j] without ids.
struct Ranges {
  const int32_t* offsets;
  int64_t count;
  const int32_t* ids;
  const uint16_t* masks;  // of group 0
  int64_t mask_stride;    // from group to group
  uint16_t* any;          // [count]: the OR of each range's masks
  int64_t any_stride;
};

// Reads the masks of members first, first + apart, .. before `end`, of several ranges at once.
template <bool kIds, int kRanges, int kEach>
__device__ void add_members(const Ranges& of, const uint16_t* masks, uint32_t place, uint32_t apart,
                            const uint32_t (&begin)[kRanges], const uint32_t (&end)[kRanges],
                            uint32_t (&any)[kRanges]) {
  uint32_t members[kRanges][kEach];
#pragma unroll
  for (int u = 0; u < kRanges; ++u) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const uint32_t member = begin[u] + place + i * apart;
      members[u][i] = kIds && member < end[u] ? __ldcs(of.ids + member) : member;
    }
  }
  uint32_t held[kRanges][kEach];
#pragma unroll
  for (int u = 0; u < kRanges; ++u) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const bool there = begin[u] + place + i * apart < end[u];
      held[u][i] = there ? masks[members[u][i]] : 0;
    }
  }
#pragma unroll
  for (int u = 0; u < kRanges; ++u) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) any[u] |= held[u][i];
  }
}

// kLanes lanes share a range, and have several ranges at once if kLanes is 1.
template <int kLanes, bool kIds>
__global__ void __launch_bounds__(kBlock) any_of_ranges(Ranges of) {
  constexpr int kRanges = kLanes == 1 ? kRangesOfLane : 1;
  constexpr int kEach = kIds ? 2 : 4;       // members of a lane in a round
  constexpr int kRounds = kIds ? 4 : 8;     // before the warp shares what is left
  constexpr int kTogether = 4;              // members of a lane when the warp shares a range
  constexpr int kStride = kBlock / kLanes;  // between the ranges of a lane
  const uint32_t lane = threadIdx.x % kWarp, place = lane % kLanes;
  const uint16_t* masks = of.masks + blockIdx.y * of.mask_stride;
  const int64_t first = int64_t{blockIdx.x} * (kStride * kRanges) + threadIdx.x / kLanes;
  uint32_t begin[kRanges], end[kRanges], any[kRanges];
#pragma unroll
  for (int u = 0; u < kRanges; ++u) {
    const int64_t range = first + u * kStride;
    begin[u] = range < of.count ? __ldcs(of.offsets + range) : 0;
    end[u] = range < of.count ? __ldcs(of.offsets + range + 1) : 0;
    any[u] = 0;
  }
#pragma unroll 1
  for (int round = 0; round < kRounds; ++round) {
    add_members<kIds, kRanges, kEach>(of, masks, place, kLanes, begin, end, any);
    bool more = false;
#pragma unroll
    for (int u = 0; u < kRanges; ++u) {
      begin[u] = min(begin[u] + kEach * kLanes, end[u]);
      more = more || begin[u] < end[u];
    }
    if (!__any_sync(kAllLanes, more)) break;
  }
#pragma unroll
  for (int u = 0; u < kRanges; ++u) {
    uint32_t owners = __ballot_sync(kAllLanes, place == 0 && begin[u] < end[u]);
#pragma unroll 1
    for (; owners != 0; owners &= owners - 1) {
      const int owner = __ffs(static_cast<int>(owners)) - 1;
      uint32_t its_begin[1] = {__shfl_sync(kAllLanes, begin[u], owner)};
      const uint32_t its_end[1] = {__shfl_sync(kAllLanes, end[u], owner)};
      uint32_t found[1] = {0};
#pragma unroll 1
      for (; its_begin[0] < its_end[0]; its_begin[0] += kTogether * kWarp) {
        add_members<kIds, 1, kTogether>(of, masks, lane, kWarp, its_begin, its_end, found);
      }
      found[0] = __reduce_or_sync(kAllLanes, found[0]);
      if (static_cast<int>(lane) == owner) any[u] |= found[0];
    }
  }
  uint16_t* out = of.any + blockIdx.y * of.any_stride;
#pragma unroll
  for (int u = 0; u < kRanges; ++u) {
#pragma unroll
    for (int apart = kLanes / 2; apart > 0; apart /= 2) {
      any[u] |= __shfl_xor_sync(kAllLanes, any[u], apart);
    }
    const int64_t range = first + u * kStride;
    if (place == 0 && range < of.count) out[range] = static_cast<uint16_t>(any[u]);
  }
}

template <int kLanes, bool kIds>
void launch_ranges(void* stream, const Ranges& of, unsigned groups) {
  constexpr int64_t per_block = kBlock / kLanes * (kLanes == 1 ? kRangesOfLane : 1);
  grace::LaunchShape shape{};
  shape.threads = kBlock;
  shape.blocks = dim3(static_cast<unsigned>((of.count + per_block - 1) / per_block), groups);
  grace::launch("any_of_ranges", stream, shape, any_of_ranges<kLanes, kIds>, of);
}

template <int kLanes>
void launch_lanes(void* stream, const Ranges& of, unsigned groups) {
  if (of.ids != nullptr) {
    launch_ranges<kLanes, true>(stream, of, groups);
  } else {
    launch_ranges<kLanes, false>(stream, of, groups);
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
//   ids    null if the members themselves number the masks
//   lanes  the lanes that share a short range: 1, 8 or 32. Any value is right for any range.
GRACE_API int32_t grace_cuda_any_of_ranges(void* stream, const int32_t* offsets, int64_t count,
                                           const int32_t* ids, const uint16_t* masks,
                                           int64_t mask_stride, uint16_t* any, int64_t any_stride,
                                           int64_t groups, int32_t lanes) {
  return grace::guarded([&] {
    const Ranges of{offsets, count, ids, masks, mask_stride, any, any_stride};
    if (lanes == 1) {
      launch_lanes<1>(stream, of, static_cast<unsigned>(groups));
    } else if (lanes == 8) {
      launch_lanes<8>(stream, of, static_cast<unsigned>(groups));
    } else {
      grace::require(lanes == kWarp, "any_of_ranges: lanes must be 1, 8 or 32");
      launch_lanes<kWarp>(stream, of, static_cast<unsigned>(groups));
    }
  });
}
