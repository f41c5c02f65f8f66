// The parts that all kernels and their launchers share.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <stdexcept>
#include <string>

// The tests run the kernels on the host, where a block's memory has another source.
#ifndef GRACE_BLOCK_MEMORY
#define GRACE_BLOCK_MEMORY(name) extern __shared__ __align__(16) unsigned char name[]
#endif

namespace grace {

constexpr uint32_t kAllLanes = 0xffffffffu;
constexpr int kWarp = 32;

// Marks an address that was itself read from memory. Otherwise the compiler must expect it to be in
// any kind of memory, and reads it the slow way.
template <typename T>
__device__ inline T* in_device_memory(T* address) {
  __builtin_assume(__isGlobal(address));
  return address;
}

inline void check_cuda(cudaError_t status, const char* what) {
  if (status != cudaSuccess) {
    throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(status));
  }
}

// Returns the number of blocks that have `each` of `count` things.
inline unsigned blocks_of(int64_t count, int64_t each) {
  return static_cast<unsigned>((count + each - 1) / each);
}

// Lets a kernel have more of a block's memory than it has by default.
template <typename... Parameters>
void allow_memory(void (*kernel)(Parameters...), size_t bytes, const char* what) {
  check_cuda(
      cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                           cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)),
      what);
}

struct LaunchShape {
  dim3 blocks;
  unsigned threads;
  size_t block_memory = 0;
  unsigned cluster = 1;  // blocks that share their memories (cluster.cuh)
  bool early = false;    // the kernel calls hopper::await_kernel_before() (instructions.cuh)
};

template <typename... Parameters, typename... Arguments>
void launch(const char* what, void* stream, const LaunchShape& shape, void (*kernel)(Parameters...),
            Arguments... arguments) {
  cudaLaunchAttribute attributes[2]{};
  unsigned count = 0;
  if (shape.cluster > 1) {
    cudaLaunchAttribute& cluster = attributes[count++];
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim.x = shape.cluster;
    cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
  }
  if (shape.early) {
    cudaLaunchAttribute& early = attributes[count++];
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
  }
  cudaLaunchConfig_t config{};
  config.gridDim = shape.blocks;
  config.blockDim = dim3(shape.threads);
  config.dynamicSmemBytes = shape.block_memory;
  config.stream = static_cast<cudaStream_t>(stream);
  config.attrs = attributes;
  config.numAttrs = count;
  check_cuda(cudaLaunchKernelEx(&config, kernel, arguments...), what);
}

}  // namespace grace
