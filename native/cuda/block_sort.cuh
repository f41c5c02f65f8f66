// Sorts distinct keys with one block of 1,024 threads. If the first halves of the keys spread well,
// they go into buckets, and each key counts its rank in its bucket. Otherwise warps sort runs by
// shuffles, and merges follow in which every key finds its rank in the other run by bisection.
#pragma once

#include "cluster.cuh"

namespace grace {

constexpr int kSortBlock = 1024;
constexpr int kBucketBits = 11;  // two buckets for each thread
constexpr int kBucketKeys = 4;   // the most keys of a thread; more are merged
constexpr uint32_t kCrowded = 64;

struct Buckets {
  uint2 counts[kSortBlock];
  uint2 begins[kSortBlock];
  BlockSums sums;
  uint32_t lowest[kWarp];  // of each warp's keys
  uint32_t highest[kWarp];
};

// Sorts the keys of a warp; returns this lane's, ascending by lane.
__device__ inline uint64_t sort_warp(uint64_t key) {
  const int lane = threadIdx.x % kWarp;
#pragma unroll
  for (int size = 2; size <= kWarp; size *= 2) {
#pragma unroll
    for (int apart = size / 2; apart > 0; apart /= 2) {
      const uint64_t other = __shfl_xor_sync(kAllLanes, key, apart);
      const bool lower = (lane & apart) == 0, ascending = (lane & size) == 0;
      key = (lower == ascending) == (other < key) ? other : key;
    }
  }
  return key;
}

// Returns the number of ascending keys that are less.
__device__ inline int32_t rank_among(const uint64_t* keys, int32_t count, uint64_t key) {
  int32_t low = 0;
  while (count > 0) {
    const int32_t half = count / 2;
    const bool less = keys[low + half] < key;
    low = less ? low + half + 1 : low;
    count = less ? count - half - 1 : half;
  }
  return low;
}

__device__ inline uint64_t* merge_sort(uint64_t* keys, uint64_t* spare, int32_t count) {
  const int lane = threadIdx.x % kWarp;
  for (int32_t at = threadIdx.x; at - lane < count; at += kSortBlock) {
    const uint64_t key = sort_warp(at < count ? keys[at] : ~uint64_t{0});
    if (at < count) keys[at] = key;
  }
  __syncthreads();
  for (int32_t width = kWarp; width < count; width *= 2) {
    for (int32_t at = threadIdx.x; at < count; at += kSortBlock) {
      const int32_t run = at / width, first = (run / 2) * 2 * width;
      const int32_t other = (run ^ 1) * width;
      const int32_t length = other < count ? min(width, count - other) : 0;
      const uint64_t key = keys[at];
      spare[first + (at - run * width) + rank_among(keys + other, length, key)] = key;
    }
    __syncthreads();
    uint64_t* sorted = spare;
    spare = keys;
    keys = sorted;
  }
  return keys;
}

// Sorts in place. Returns false, and changes nothing, if too many keys would share a bucket.
__device__ inline bool bucket_sort(uint64_t* keys, uint64_t* spare, int32_t count,
                                   Buckets& buckets) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  uint64_t own[kBucketKeys];
  uint32_t lowest = ~0u, highest = 0;
#pragma unroll
  for (int i = 0; i < kBucketKeys; ++i) {
    const int32_t at = i * kSortBlock + threadIdx.x;
    if (at >= count) continue;
    own[i] = keys[at];
    const uint32_t half = static_cast<uint32_t>(own[i] >> 32);
    lowest = min(lowest, half);
    highest = max(highest, half);
  }
  lowest = __reduce_min_sync(kAllLanes, lowest);
  highest = __reduce_max_sync(kAllLanes, highest);
  if (lane == 0) buckets.lowest[warp] = lowest, buckets.highest[warp] = highest;
  buckets.counts[threadIdx.x] = make_uint2(0, 0);
  __syncthreads();
  lowest = __reduce_min_sync(kAllLanes, buckets.lowest[lane]);
  highest = __reduce_max_sync(kAllLanes, buckets.highest[lane]);
  const int used_bits = 32 - __clz(static_cast<int>(highest - lowest));
  const int shift = max(used_bits - kBucketBits, 0);
  uint32_t* counts = &buckets.counts->x;
  const uint32_t* begins = &buckets.begins->x;
  uint32_t bucket[kBucketKeys], arrival[kBucketKeys];
#pragma unroll
  for (int i = 0; i < kBucketKeys; ++i) {
    if (i * kSortBlock + static_cast<int>(threadIdx.x) >= count) continue;
    bucket[i] = (static_cast<uint32_t>(own[i] >> 32) - lowest) >> shift;
    arrival[i] = atomicAdd(counts + bucket[i], 1u);
  }
  __syncthreads();
  const uint2 inside = buckets.counts[threadIdx.x];
  const Sums sums = sums_of_block(inside.x + inside.y, buckets.sums);
  buckets.begins[threadIdx.x] = make_uint2(sums.before, sums.before + inside.x);
  if (__syncthreads_or(max(inside.x, inside.y) > kCrowded) != 0) return false;
#pragma unroll
  for (int i = 0; i < kBucketKeys; ++i) {
    if (i * kSortBlock + static_cast<int>(threadIdx.x) >= count) continue;
    spare[begins[bucket[i]] + arrival[i]] = own[i];
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kBucketKeys; ++i) {
    if (i * kSortBlock + static_cast<int>(threadIdx.x) >= count) continue;
    const uint32_t begin = begins[bucket[i]], end = begin + counts[bucket[i]];
    uint32_t place = begin;
    for (uint32_t at = begin; at < end; ++at) place += spare[at] < own[i];
    keys[place] = own[i];
  }
  __syncthreads();
  return true;
}

// Sorts `count` keys; `spare` has room for as many. Returns the one of both that has the result.
__device__ inline uint64_t* sort_block(uint64_t* keys, uint64_t* spare, int32_t count,
                                       Buckets& buckets) {
  if (count <= kBucketKeys * kSortBlock && bucket_sort(keys, spare, count, buckets)) return keys;
  return merge_sort(keys, spare, count);
}

}  // namespace grace
