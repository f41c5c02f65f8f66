// Blocks that reach each other's memory: a thread block cluster in code compiled for GPUs that have
// clusters, elsewhere a block by itself. A launch must ask which code it starts.
#ifndef GRACE_CLUSTER_CUH_
#define GRACE_CLUSTER_CUH_

#include <cooperative_groups.h>

#include <cstdint>

namespace grace {

constexpr uint32_t kMostBlocks = 4;  // of a cluster
constexpr int kClusterCode = 90;  // the least cudaFuncAttributes::ptxVersion of code with clusters

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

__device__ inline uint32_t cluster_rank() {
  return cooperative_groups::this_cluster().block_rank();
}

__device__ inline uint32_t cluster_size() {
  return cooperative_groups::this_cluster().num_blocks();
}

// What any block wrote before, to its own memory, another's or the device's, all see after it.
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

template <typename T>
__device__ T* in_first_block(T* own) {
  return in_block(own, 0);
}

}  // namespace grace

#endif  // GRACE_CLUSTER_CUH_
