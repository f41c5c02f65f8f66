// The part of CUDA that the kernels use, on the host, so that tests run them without a GPU.
//
// Every thread of a cluster of blocks is a fiber. One fiber runs at a time, until it waits at a
// barrier or for its warp, so atomics are plain code. A missing barrier gives wrong results:
// launches alternate between running the fibers forwards and backwards, and block memory is
// poisoned at first. Threads that wait for each other forever end the program. This cannot test
// memory order between blocks, nor whether a GPU accepts a launch. With __CUDA_ARCH__ defined it
// runs the code of such a GPU, otherwise that of the newest.
#pragma once

#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <csetjmp>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#define __global__
#define __device__
#define __host__
#define __launch_bounds__(...)
#define __restrict__
#define GRACE_BLOCK_MEMORY(name) unsigned char* name = emulated::self->block->memory.get()

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
  dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};
struct float2 {
  float x, y;
};
struct uint2 {
  unsigned x, y;
};
struct alignas(16) ulonglong2 {
  unsigned long long x, y;
};
inline dim3 threadIdx, blockIdx, blockDim, gridDim;
inline float2 make_float2(float x, float y) { return {x, y}; }
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }

namespace emulated {

#ifdef __CUDA_ARCH__
constexpr int kArchitecture = __CUDA_ARCH__;
#else
constexpr int kArchitecture = 900;
#endif

inline int64_t progress = 0;  // the number of barriers passed and fibers ended
[[noreturn]] void fail(const char* what);
void yield();

struct Barrier {
  unsigned expected = 0, arrived = 0, generation = 0;

  void wait() {
    const unsigned now = generation;
    if (++arrived == expected) {
      arrived = 0;
      ++generation;
      ++progress;
    } else {
      while (generation == now) yield();
    }
  }
};

struct Cluster {
  unsigned blocks = 1;
  Barrier barrier;
  std::vector<unsigned char*> memories;
};

struct Warp {
  Barrier barrier;
  uint64_t values[2][32];
  unsigned round[32] = {};
};

struct Block {
  Cluster* cluster = nullptr;
  unsigned rank = 0;
  Barrier barrier;
  std::unique_ptr<unsigned char[]> memory;
  std::vector<Warp> warps;
  int any = 0;  // of __syncthreads_or
};

struct Fiber {
  Block* block = nullptr;
  unsigned thread = 0;
  dim3 index;
  bool started = false, ended = false;
  jmp_buf at;
};

inline constexpr size_t kStack = 1 << 16;
inline Fiber* self = nullptr;
inline jmp_buf scheduler;
inline const std::function<void()>* body = nullptr;

[[noreturn]] inline void fail(const char* what) {
  std::fprintf(stderr, "emulated CUDA: %s\n", what);
  std::abort();
}

inline void become(Fiber* fiber) {
  self = fiber;
  threadIdx = dim3(fiber->thread, 0, 0);
  blockIdx = fiber->index;
}

inline void yield() {
  if (_setjmp(self->at) == 0) _longjmp(scheduler, 1);
}

inline void enter() {
  (*body)();
  self->ended = true;
  ++progress;
  _longjmp(scheduler, 1);
}

inline void start(Fiber& fiber, unsigned char* stack) {
  ucontext_t context;
  getcontext(&context);
  context.uc_stack.ss_sp = stack;
  context.uc_stack.ss_size = kStack;
  context.uc_link = nullptr;
  makecontext(&context, enter, 0);
  fiber.started = true;
  setcontext(&context);
}

inline unsigned char* stacks(size_t fibers) {
  static std::unique_ptr<unsigned char[]> memory;
  static size_t size = 0;
  if (fibers > size) {
    memory.reset(new unsigned char[fibers * kStack]);
    size = fibers;
  }
  return memory.get();
}

// Runs a fiber until it waits or ends.
inline void resume(Fiber& fiber, unsigned char* stack) {
  become(&fiber);
  if (_setjmp(scheduler) != 0) return;
  if (fiber.started) _longjmp(fiber.at, 1);
  start(fiber, stack);
}

inline void run_cluster(std::vector<Fiber>& fibers, bool backwards) {
  unsigned char* const memory = stacks(fibers.size());
  size_t left = fibers.size();
  while (left != 0) {
    const int64_t before = progress;
    left = 0;
    for (size_t at = 0; at < fibers.size(); ++at) {
      const size_t which = backwards ? fibers.size() - 1 - at : at;
      if (fibers[which].ended) continue;
      ++left;
      resume(fibers[which], memory + which * kStack);
    }
    if (left != 0 && progress == before) fail("threads wait for each other");
  }
}

inline void run_grid(dim3 grid, unsigned threads, size_t memory, unsigned cluster_blocks,
                     const std::function<void()>& kernel) {
  static bool backwards = false;
  backwards = !backwards;
  blockDim = dim3(threads);
  gridDim = grid;
  body = &kernel;
  const unsigned total = grid.x * grid.y * grid.z;
  if (threads % 32 != 0 || total % cluster_blocks != 0) fail("not whole warps or clusters");
  for (unsigned first = 0; first < total; first += cluster_blocks) {
    Cluster cluster;
    cluster.blocks = cluster_blocks;
    cluster.barrier.expected = cluster_blocks * threads;
    std::vector<Block> blocks(cluster_blocks);
    std::vector<Fiber> fibers(cluster_blocks * threads);
    for (unsigned b = 0; b < cluster_blocks; ++b) {
      Block& block = blocks[b];
      block.cluster = &cluster;
      block.rank = b;
      block.barrier.expected = threads;
      block.memory.reset(new unsigned char[memory + 1]);
      std::memset(block.memory.get(), 0xa5, memory);
      cluster.memories.push_back(block.memory.get());
      block.warps.resize(threads / 32);
      for (Warp& warp : block.warps) warp.barrier.expected = 32;
      const unsigned index = first + b;
      for (unsigned t = 0; t < threads; ++t) {
        Fiber& fiber = fibers[b * threads + t];
        fiber.block = &block;
        fiber.thread = t;
        fiber.index = dim3(index % grid.x, index / grid.x % grid.y, index / grid.x / grid.y);
      }
    }
    run_cluster(fibers, backwards);
  }
}

// Returns the values of all lanes, once each lane of the warp has given its value.
template <typename T>
const uint64_t* exchange(T value) {
  const unsigned lane = self->thread % 32;
  Warp& warp = self->block->warps[self->thread / 32];
  uint64_t* const values = warp.values[warp.round[lane]++ % 2];
  values[lane] = 0;
  std::memcpy(&values[lane], &value, sizeof value);
  warp.barrier.wait();
  return values;
}

template <typename T>
T value_of(uint64_t bits) {
  T value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

}  // namespace emulated

inline void __syncthreads() { emulated::self->block->barrier.wait(); }
inline int __syncthreads_or(int own) {
  auto& block = *emulated::self->block;
  block.any |= own;
  block.barrier.wait();
  const int any = block.any;
  block.barrier.wait();
  block.any = 0;
  return any;
}
inline void __syncwarp() { emulated::exchange(0); }

inline uint32_t __ballot_sync(uint32_t, bool own) {
  const uint64_t* values = emulated::exchange<uint32_t>(own);
  uint32_t lanes = 0;
  for (unsigned i = 0; i < 32; ++i) lanes |= static_cast<uint32_t>(values[i] != 0) << i;
  return lanes;
}
inline bool __any_sync(uint32_t lanes, bool own) { return __ballot_sync(lanes, own) != 0; }

template <typename T>
T __shfl_sync(uint32_t, T value, int lane) {
  return emulated::value_of<T>(emulated::exchange(value)[lane % 32]);
}
template <typename T>
T __shfl_xor_sync(uint32_t lanes, T value, int apart) {
  return __shfl_sync(lanes, value, static_cast<int>(emulated::self->thread % 32) ^ apart);
}
template <typename T>
T __shfl_up_sync(uint32_t lanes, T value, int apart) {
  const int lane = static_cast<int>(emulated::self->thread % 32);
  return __shfl_sync(lanes, value, lane >= apart ? lane - apart : lane);
}

inline uint32_t __reduce_min_sync(uint32_t, uint32_t value) {
  const uint64_t* values = emulated::exchange(value);
  return static_cast<uint32_t>(*std::min_element(values, values + 32));
}
inline uint32_t __reduce_max_sync(uint32_t, uint32_t value) {
  const uint64_t* values = emulated::exchange(value);
  return static_cast<uint32_t>(*std::max_element(values, values + 32));
}
inline uint32_t __reduce_or_sync(uint32_t, uint32_t value) {
  const uint64_t* values = emulated::exchange(value);
  uint64_t any = 0;
  for (unsigned i = 0; i < 32; ++i) any |= values[i];
  return static_cast<uint32_t>(any);
}

template <typename T>
T atomicAdd(T* at, T more) {
  const T before = *at;
  *at = before + more;
  return before;
}

template <typename T>
T atomicOr(T* at, T bits) {
  const T before = *at;
  *at = before | bits;
  return before;
}
template <typename T>
T atomicAnd(T* at, T bits) {
  const T before = *at;
  *at = before & bits;
  return before;
}

template <typename T>
T __ldcs(const T* at) {
  return *at;
}
template <typename T>
bool __isGlobal(const T*) {
  return true;
}
inline void __builtin_assume(bool) {}
inline int __popc(uint32_t bits) { return __builtin_popcount(bits); }
inline int __ffs(int bits) { return __builtin_ffs(bits); }
inline int __clz(int bits) { return bits == 0 ? 32 : __builtin_clz(static_cast<unsigned>(bits)); }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __expf(float x) { return std::exp(x); }
using std::max;
using std::min;

enum cudaError_t { cudaSuccess, cudaErrorInvalidConfiguration };
enum { cudaLaunchAttributeClusterDimension, cudaLaunchAttributeProgrammaticStreamSerialization };
enum { cudaFuncAttributeMaxDynamicSharedMemorySize };
using cudaStream_t = void*;
struct cudaFuncAttributes {
  int ptxVersion;
};
struct cudaLaunchAttribute {
  int id;
  struct {
    dim3 clusterDim;
    int programmaticStreamSerializationAllowed;
  } val;
};
struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  size_t dynamicSmemBytes;
  cudaStream_t stream;
  cudaLaunchAttribute* attrs;
  unsigned numAttrs;
};

inline const char* cudaGetErrorString(cudaError_t) { return "invalid configuration"; }
inline cudaError_t cudaFuncSetAttribute(const void*, int, int) { return cudaSuccess; }
inline cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* of, const void*) {
  return of->ptxVersion = emulated::kArchitecture / 10, cudaSuccess;
}

template <typename... Parameters, typename... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               Arguments... arguments) {
  const dim3 grid = config->gridDim;
  if (grid.x == 0 || grid.y == 0 || grid.z == 0 || config->dynamicSmemBytes > 227 * 1024) {
    return cudaErrorInvalidConfiguration;
  }
  unsigned cluster = 1;
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    if (config->attrs[i].id == cudaLaunchAttributeClusterDimension) {
      cluster = config->attrs[i].val.clusterDim.x;
    }
  }
  if (cluster > 1 && emulated::kArchitecture < 900) return cudaErrorInvalidConfiguration;
  emulated::run_grid(grid, config->blockDim.x, config->dynamicSmemBytes, cluster,
                     [=] { kernel(arguments...); });
  return cudaSuccess;
}
