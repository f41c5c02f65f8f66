// Sums over the threads of a block, of up to 1,024.
#ifndef GRACE_BLOCK_SUM_CUH_
#define GRACE_BLOCK_SUM_CUH_

#include <cstdint>

#include "launch.cuh"

namespace grace {

struct BlockSums {
  uint32_t warps[kWarp];
};

struct Sums {
  uint32_t before;  // of the threads before this one
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

// All threads of a block of 1,024 together; a barrier lies between two uses of the same memory.
__device__ inline Sums sums_of_block(uint32_t own, BlockSums& memory) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const uint32_t until = sum_until_lane(own);
  if (lane == kWarp - 1) memory.warps[warp] = until;
  __syncthreads();
  const uint32_t warps = sum_until_lane(memory.warps[lane]);
  const uint32_t earlier = __shfl_sync(kAllLanes, warps, warp > 0 ? warp - 1 : 0);
  return {until - own + (warp > 0 ? earlier : 0), __shfl_sync(kAllLanes, warps, kWarp - 1)};
}

}  // namespace grace

#endif  // GRACE_BLOCK_SUM_CUH_
