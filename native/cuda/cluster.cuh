// Work that threads share: sums over a block, and blocks that read each other's memory.
//
// Code compiled for GPUs with thread block clusters uses them; in other code a cluster is one
// block. A launch must ask which code it starts.
#pragma once

#include <cooperative_groups.h>

#include "launch.cuh"

namespace grace {

constexpr uint32_t kMostBlocks = 4;  // in a cluster
constexpr int kClusterCode = 90;  // the least cudaFuncAttributes::ptxVersion of code with clusters

struct BlockSums {
  uint32_t warps[kWarp];
};

struct Sums {
  uint32_t before;  // the sum over the threads before this one
  uint32_t total;
};

__device__ inline uint32_t sum_until_lane(uint32_t value) {
  const int lane = threadIdx.x % kWarp;
#pragma unroll
  for (int apart = 1; apart < kWarp; apart *= 2) {
    const uint32_t lower = __shfl_up_sync(kAllLanes, value, apart);
    if (lane >= apart) value += lower;
  }
  return value;
}

// All threads of a block of 1,024 call this together. Two uses of the same memory need a barrier
// between them.
__device__ inline Sums sums_of_block(uint32_t own, BlockSums& memory) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const uint32_t until = sum_until_lane(own);
  if (lane == kWarp - 1) memory.warps[warp] = until;
  __syncthreads();
  const uint32_t warps = sum_until_lane(memory.warps[lane]);
  const uint32_t earlier = __shfl_sync(kAllLanes, warps, warp > 0 ? warp - 1 : 0);
  return {until - own + (warp > 0 ? earlier : 0), __shfl_sync(kAllLanes, warps, kWarp - 1)};
}

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

__device__ inline uint32_t cluster_rank() {
  return cooperative_groups::this_cluster().block_rank();
}

__device__ inline uint32_t cluster_size() {
  return cooperative_groups::this_cluster().num_blocks();
}

// After it, every block sees what any block wrote before: to its own memory, another block's or the
// device's.
__device__ inline void cluster_barrier() { cooperative_groups::this_cluster().sync(); }

// The same object in the memory of another block of the cluster.
template <typename T>
__device__ T* in_block(T* own, uint32_t rank) {
  return cooperative_groups::this_cluster().map_shared_rank(own, rank);
}

#else

__device__ inline uint32_t cluster_rank() { return 0; }
__device__ inline uint32_t cluster_size() { return 1; }
__device__ inline void cluster_barrier() { __syncthreads(); }
template <typename T>
__device__ T* in_block(T* own, uint32_t) {
  return own;
}

#endif

}  // namespace grace
