// Products of rows and weights rounded to e4m3, and what a decoder's layer does with each result.
// cuBLASLt computes the products that nothing follows (kernels/products/fp8_products_cuda.py).
//
// Weights and rows stream through shared memory: a warp starts their copies several stages ahead.
// Two groups of four warps take turns. While one multiplies, the other writes the results of its
// tile, so the tensor cores wait for neither results nor residual. One more warp for each group
// moves tiles of the residual, which arrive while their products are summed.
//
// Threads write a rounded result in the order in which they hold it, 32 bytes at a time:
// kernels/products/fp8_products.py has the order, in which the next weight's columns are, too.
#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include <iterator>

#include "../launch.cuh"
#include "grace/abi.h"
#include "instructions.cuh"

namespace {

using grace::kWarp;
namespace hopper = grace::hopper;

enum class Result : int64_t {
  kResidual,  // out += x W^T in bfloat16, the new rows rounded, and the sums of their squares
  kHidden,    // the ReLU of x W^T, rounded
  kGated,    // silu(gate) * value, rounded: columns 2 j and 2 j + 1 of x W^T are its gate and value
  kLogSums,  // the largest number of each row and tile of x W^T, and the sum of exp relative to it
};

// The kernel multiplies a number by its row's factor and `times` before it rounds it or sums its
// exp. It rounds the new rows with kResidual, and the hidden ones with kHidden and kGated.
struct Product {
  const void* x;                // e4m3 [rows, inner]
  const void* weight;           // e4m3 [outs, inner]
  const float* weight_scales;   // [outs]
  const float* request_scales;  // [rows / beams], or null
  const float* row_factors;     // [rows]
  void* out;                    // bfloat16 [rows, outs]
  void* rounded;                // e4m3 [rows, outs], with kGated [rows, outs / 2]
  float* squares;               // [outs / 128, rows]
  float2* log_sums;             // [outs / 128, rows]
  int64_t rows, outs, inner, beams, result, early;
  int64_t counted;  // with kLogSums, the number of columns that count
  float times;
};

constexpr int kTile = 128;       // rows and columns
constexpr int kStep = 128;       // terms summed per stage: bytes of a swizzled row
constexpr int kBoxColumns = 64;  // 16-bit numbers in a swizzled row
constexpr int kGroupThreads = 128;
constexpr int kThreads = 3 * kGroupThreads;
constexpr int kStages = 5;
constexpr int kOperandBytes = kTile * kStep;
constexpr int kStageBytes = 2 * kOperandBytes;
constexpr int kTileBytes = kTile * kTile * 2;

struct Barriers {
  uint64_t full[kStages], empty[kStages];
  uint64_t turn[2];       // the group may multiply
  uint64_t tile_full[2];  // of a group's tile: the residual is there
  uint64_t tile_done[2];  // the group has written its results
};

constexpr int kAlignment = 1024;  // of swizzled memory
constexpr int kBlockMemory = kAlignment + kStages * kStageBytes + 2 * kTileBytes + sizeof(Barriers);
static_assert(kBlockMemory <= 232448);

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

constexpr int kHalf = 64;  // rows of an instruction
constexpr int kBoxBytes = kTile * kBoxColumns * 2;
constexpr int kTerms = 32;  // of one instruction

// The order in which blocks take tiles: by bands of `kBand` tiles of rows, and column by column
// within a band. So the rows and columns that blocks read at one time are in cache.
struct Tiles {
  static constexpr uint32_t kBand = 8;
  const Product& p;
  __device__ uint32_t columns() const { return static_cast<uint32_t>(p.outs) / kTile; }
  __device__ uint32_t rows() const { return (static_cast<uint32_t>(p.rows) + kTile - 1) / kTile; }
  __device__ uint32_t count() const { return columns() * rows(); }
  // The first row and column of a tile. Divisions find them, so a thread asks once per tile.
  __device__ int2 start(uint32_t tile) const {
    const uint32_t band = tile / (kBand * columns()), own = tile % (kBand * columns());
    const uint32_t height = min(kBand, rows() - band * kBand);
    const uint32_t row = band * kBand + own % height, column = own / height;
    return {static_cast<int>(row) * kTile, static_cast<int>(column) * kTile};
  }
};

__device__ inline uint32_t rounded_pair(float low, float high) {
  return __nv_cvt_float2_to_fp8x2(make_float2(low, high), __NV_SATFINITE, __NV_E4M3);
}

__device__ inline uint32_t bfloat16_pair(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return reinterpret_cast<const uint32_t&>(pair);
}

// The address of row `row` and 16-byte chunk `chunk` in a group's tile: boxes of 64 columns, each
// swizzled as the copy engine does.
__device__ inline uint32_t tile_address(uint32_t tile, int row, int chunk) {
  return tile + chunk / 8 * kBoxBytes + row * 128 + (chunk % 8 ^ row % 8) * 16;
}

// A thread's factors for the results of a tile. It reads them before the products, because a later
// read would delay the results.
struct Scales {
  float2 columns[kTile / 8];      // of columns 8 i + 2 q and the next
  float requests[4], factors[4];  // of rows 16 w + lane / 4 + 8 i of the upper half, then the lower

  template <Result kResult>
  __device__ void read(const Product& p, int row, int column) {
    const int lane = threadIdx.x % kWarp;
    const float* own = p.weight_scales + column + 2 * (lane % 4);
#pragma unroll
    for (int at = 0; at < kTile / 8; ++at) {
      columns[at] = __ldg(reinterpret_cast<const float2*>(own + 8 * at));
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int64_t at = row + row_in_tile(i);
      const bool live = at < p.rows;
      requests[i] = 1.0f;
      factors[i] = 0.0f;
      if (kResult == Result::kResidual && p.request_scales != nullptr && live) {
        requests[i] = p.request_scales[static_cast<uint32_t>(at) / static_cast<uint32_t>(p.beams)];
      }
      if (live) factors[i] = p.times * p.row_factors[at];
    }
  }

  __device__ static int row_in_tile(int i) {
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x % kGroupThreads / kWarp;
    return i / 2 * kHalf + warp * 16 + lane / 4 + i % 2 * 8;
  }
};

// Writes the results of one half of a tile's rows, the upper or the lower.
template <Result kResult>
__device__ void write_results(const Product& p, const float (&sums)[kHalf], const Scales& scales,
                              uint32_t tile, int lower, int row, int column) {
  const int lane = threadIdx.x % kWarp, quarter = lane % 4;
  const int warp_row = lower * kHalf + threadIdx.x % kGroupThreads / kWarp * 16;
  const int matrix_row = warp_row + lane / 8 % 2 * 8 + lane % 8, matrix_chunk = lane / 16;
  float squares[2] = {0.0f, 0.0f};
  uint32_t bytes[2][8], gated[2][4] = {};
#pragma unroll
  for (int eight = 0; eight < kTile / 8; eight += 2) {
    const uint32_t address = tile_address(tile, matrix_row, eight + matrix_chunk);
    uint32_t numbers[4], pair[2][2];
    float hidden[2][2];
    if (kResult == Result::kResidual) hopper::load_matrices(numbers, address);
#pragma unroll
    for (int part = 0; part < 4; ++part) {  // in the order of the matrices
      const int half = part % 2, at = eight + part / 2;
      const float2 by = scales.columns[at];
      const float factor = scales.factors[2 * lower + half];
      float low = sums[4 * at + 2 * half] * by.x, high = sums[4 * at + 2 * half + 1] * by.y;
      if (kResult == Result::kResidual) {
        low = fmaf(low, scales.requests[2 * lower + half], __uint_as_float(numbers[part] << 16));
        high = fmaf(high, scales.requests[2 * lower + half],
                    __uint_as_float(numbers[part] & 0xffff0000u));
        squares[half] = fmaf(low, low, fmaf(high, high, squares[half]));
        numbers[part] = bfloat16_pair(low, high);
        pair[half][part / 2] = rounded_pair(low * factor, high * factor);
      } else if (kResult == Result::kGated) {
        low *= factor;
        hidden[half][part / 2] = __fdividef(low, 1.0f + __expf(-low)) * (high * factor);
      } else {
        low *= factor;
        high *= factor;
        // NaN stays NaN, which a maximum would hide.
        pair[half][part / 2] = rounded_pair(low < 0.0f ? 0.0f : low, high < 0.0f ? 0.0f : high);
      }
    }
    if (kResult == Result::kResidual) hopper::store_matrices(address, numbers);
    if (kResult == Result::kGated) {
      for (int half = 0; half < 2; ++half) {
        gated[half][eight / 4] |= rounded_pair(hidden[half][0], hidden[half][1]) << eight % 4 * 8;
      }
    } else {
      bytes[0][eight / 2] = pair[0][0] | pair[0][1] << 16;
      bytes[1][eight / 2] = pair[1][0] | pair[1][1] << 16;
    }
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int64_t own = row + Scales::row_in_tile(2 * lower + half);
    const bool live = own < p.rows;
    if (kResult == Result::kGated && live) {
      auto* to = reinterpret_cast<uint4*>(static_cast<uint8_t*>(p.rounded) + own * (p.outs / 2) +
                                          column / 2 + quarter * 16);
      *to = make_uint4(gated[half][0], gated[half][1], gated[half][2], gated[half][3]);
    } else if (kResult != Result::kGated && live) {
      auto* to = reinterpret_cast<uint4*>(static_cast<uint8_t*>(p.rounded) + own * p.outs + column +
                                          quarter * 32);
      to[0] = make_uint4(bytes[half][0], bytes[half][1], bytes[half][2], bytes[half][3]);
      to[1] = make_uint4(bytes[half][4], bytes[half][5], bytes[half][6], bytes[half][7]);
    }
    if (kResult == Result::kResidual) {
      float sum = squares[half];
      sum += __shfl_xor_sync(grace::kAllLanes, sum, 1);
      sum += __shfl_xor_sync(grace::kAllLanes, sum, 2);
      if (quarter == 0 && live) p.squares[column / kTile * p.rows + own] = sum;
    }
  }
}

// Writes the largest number of each row of one half of a tile, and the sum of exp relative to it.
__device__ void write_log_sums(const Product& p, const float (&sums)[kHalf], const Scales& scales,
                               int lower, int row, int column) {
  const int quarter = threadIdx.x % kWarp % 4;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float factor = scales.factors[2 * lower + half];
    const auto number = [&](int i) {  // of column 8 (i / 2) + 2 q + i % 2
      const float2 by = scales.columns[i / 2];
      const bool counts = column + i / 2 * 8 + quarter * 2 + i % 2 < p.counted;
      const float sum = sums[i / 2 * 4 + 2 * half + i % 2] * (i % 2 == 0 ? by.x : by.y);
      return counts ? sum * factor : -INFINITY;
    };
    float highest = -INFINITY, total = 0.0f;
#pragma unroll
    for (int i = 0; i < kTile / 4; ++i) highest = fmaxf(highest, number(i));
    for (int apart = 1; apart < 4; apart *= 2) {
      highest = fmaxf(highest, __shfl_xor_sync(grace::kAllLanes, highest, apart));
    }
    if (highest == -INFINITY) highest = 0.0f;
#pragma unroll
    for (int i = 0; i < kTile / 4; ++i) total += __expf(number(i) - highest);
    for (int apart = 1; apart < 4; apart *= 2) {
      total += __shfl_xor_sync(grace::kAllLanes, total, apart);
    }
    const int64_t own = row + Scales::row_in_tile(2 * lower + half);
    if (quarter == 0 && own < p.rows) {
      p.log_sums[column / kTile * p.rows + own] = make_float2(highest, total);
    }
  }
}

#endif

template <Result kResult>
__global__ void __launch_bounds__(kThreads, 1)
    fp8_product(const __grid_constant__ CUtensorMap x_map,
                const __grid_constant__ CUtensorMap weight_map,
                const __grid_constant__ CUtensorMap out_map, const Product p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ unsigned char raw[];
  unsigned char* memory = raw + (-hopper::shared_address(raw) % kAlignment);
  unsigned char* tiles_memory = memory + kStages * kStageBytes;
  Barriers& barriers = *reinterpret_cast<Barriers*>(tiles_memory + 2 * kTileBytes);
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < kStages; ++stage) {
      hopper::init_barrier(&barriers.full[stage], 1);
      hopper::init_barrier(&barriers.empty[stage], 1);
    }
    for (int group = 0; group < 2; ++group) {
      hopper::init_barrier(&barriers.turn[group], 1);
      hopper::init_barrier(&barriers.tile_full[group], 1);
      hopper::init_barrier(&barriers.tile_done[group], kGroupThreads);
    }
    hopper::publish_barriers();
    hopper::arrive(&barriers.turn[0]);
  }
  __syncthreads();
  hopper::await_kernel_before();

  const Tiles tiles{p};
  const int steps = static_cast<int>((p.inner + kStep - 1) / kStep);
  const int group = static_cast<int>(threadIdx.x) / kGroupThreads;
  if (group == 2) {
    hopper::give_registers<40>();
    const int warp = threadIdx.x % kGroupThreads / kWarp;
    if (threadIdx.x % kWarp != 0) return;
    if (warp == 0) {
      uint32_t stage = 0, parity = 1;
      for (uint32_t tile = blockIdx.x; tile < tiles.count(); tile += gridDim.x) {
        const auto [row, column] = tiles.start(tile);
        for (int step = 0; step < steps; ++step) {
          unsigned char* x = memory + stage * kStageBytes;
          uint64_t* full = &barriers.full[stage];
          hopper::wait(&barriers.empty[stage], parity);
          hopper::arrive_expecting(full, kStageBytes);
          hopper::load_box(x, x_map, full, step * kStep, row);
          hopper::load_box(x + kOperandBytes, weight_map, full, step * kStep, column);
          if (++stage == kStages) stage = 0, parity ^= 1;
        }
      }
    } else if (warp < 3 && kResult == Result::kResidual) {
      const int own = warp - 1;
      unsigned char* results = tiles_memory + own * kTileBytes;
      uint32_t parity = 0;
      for (uint32_t tile = blockIdx.x + own * gridDim.x; tile < tiles.count();
           tile += 2 * gridDim.x) {
        const auto [row, column] = tiles.start(tile);
        hopper::arrive_expecting(&barriers.tile_full[own], kTileBytes);
        hopper::load_box(results, out_map, &barriers.tile_full[own], column, row);
        hopper::load_box(results + kBoxBytes, out_map, &barriers.tile_full[own],
                         column + kBoxColumns, row);
        hopper::wait(&barriers.tile_done[own], parity);
        parity ^= 1;
        hopper::store_box(out_map, results, column, row);
        hopper::store_box(out_map, results + kBoxBytes, column + kBoxColumns, row);
        hopper::wait_until_read();
      }
      hopper::wait_until_stored();
    }
    return;
  }

  hopper::take_registers<232>();
  const uint32_t results = hopper::shared_address(tiles_memory + group * kTileBytes);
  const bool first = threadIdx.x % kGroupThreads == 0;
  uint32_t at = group * steps;  // the step's number, counted over all tiles of this block
  uint32_t turn = 0;
  for (uint32_t tile = blockIdx.x + group * gridDim.x; tile < tiles.count();
       tile += 2 * gridDim.x) {
    const auto [row, column] = tiles.start(tile);
    float upper[kHalf], lower[kHalf];
    Scales scales;
    scales.read<kResult>(p, row, column);
    hopper::wait(&barriers.turn[group], turn);
    uint32_t stage = at % kStages, parity = at / kStages % 2, before = 0;
    for (int step = 0; step < steps; ++step) {
      const unsigned char* x = memory + stage * kStageBytes;
      const uint64_t a = hopper::descriptor(x);
      const uint64_t b = hopper::descriptor(x + kOperandBytes);
      constexpr uint64_t kLower = kHalf * kStep / 16;
      hopper::wait(&barriers.full[stage], parity);
      hopper::begin_products();
#pragma unroll
      for (int part = 0; part < kStep / kTerms; ++part) {
        hopper::add_product(upper, a + 2 * part, b + 2 * part, step + part != 0);
        hopper::add_product(lower, a + kLower + 2 * part, b + 2 * part, step + part != 0);
      }
      hopper::commit_products();
      hopper::wait_for_products<1>();
      if (first && step > 0) hopper::arrive(&barriers.empty[before]);
      before = stage;
      if (++stage == kStages) stage = 0, parity ^= 1;
    }
    if (first) hopper::arrive(&barriers.turn[1 - group]);
    hopper::wait_for_products<0>();
    hopper::settle(upper);
    hopper::settle(lower);
    if (first) hopper::arrive(&barriers.empty[before]);
    at += 2 * steps;
    if (kResult == Result::kResidual) hopper::wait(&barriers.tile_full[group], turn);
    turn ^= 1;
    if constexpr (kResult == Result::kLogSums) {
      write_log_sums(p, upper, scales, 0, row, column);
      write_log_sums(p, lower, scales, 1, row, column);
    } else {
      write_results<kResult>(p, upper, scales, results, 0, row, column);
      write_results<kResult>(p, lower, scales, results, 1, row, column);
    }
    if (kResult == Result::kResidual) {
      hopper::publish_shared();
      hopper::arrive(&barriers.tile_done[group]);
    }
  }
#endif
}

using Encode = decltype(&cuTensorMapEncodeTiled);

Encode encode_function() {
  static const Encode found = [] {
    void* entry = nullptr;
    cudaDriverEntryPointQueryResult status{};
    grace::check_cuda(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000,
                                                       cudaEnableDefault, &status),
                      "fp8_product: the driver's tensor maps");
    grace::require(status == cudaDriverEntryPointSuccess && entry != nullptr,
                   "fp8_product: the driver has no tensor maps");
    return reinterpret_cast<Encode>(entry);
  }();
  return found;
}

CUtensorMap map_of(const void* matrix, CUtensorMapDataType type, int64_t bytes, int64_t rows,
                   int64_t columns, int box_columns) {
  CUtensorMap map{};
  const cuuint64_t shape[2] = {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(rows)};
  const cuuint64_t strides[1] = {static_cast<cuuint64_t>(columns * bytes)};
  const cuuint32_t box[2] = {static_cast<cuuint32_t>(box_columns), kTile};
  const cuuint32_t apart[2] = {1, 1};
  const CUresult status =
      encode_function()(&map, type, 2, const_cast<void*>(matrix), shape, strides, box, apart,
                        CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                        CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  grace::require(status == CUDA_SUCCESS, "fp8_product: the driver refuses a matrix's shape");
  return map;
}

using Kernel = void (*)(CUtensorMap, CUtensorMap, CUtensorMap, Product);

// The kernel of each Result, in its order.
constexpr Kernel kKernels[] = {fp8_product<Result::kResidual>, fp8_product<Result::kHidden>,
                               fp8_product<Result::kGated>, fp8_product<Result::kLogSums>};

void launch_product(void* stream, const Product& p, int64_t blocks) {
  constexpr auto kBytes = CU_TENSOR_MAP_DATA_TYPE_UINT8;
  const CUtensorMap x = map_of(p.x, kBytes, 1, p.rows, p.inner, kStep);
  const CUtensorMap weight = map_of(p.weight, kBytes, 1, p.outs, p.inner, kStep);
  CUtensorMap out{};
  if (p.out != nullptr) {
    out = map_of(p.out, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, p.rows, p.outs, kBoxColumns);
  }
  const int64_t tiles = (p.rows + kTile - 1) / kTile * (p.outs / kTile);
  const dim3 grid(static_cast<unsigned>(tiles < blocks ? tiles : blocks));
  const grace::LaunchShape shape{grid, kThreads, kBlockMemory, 1, p.early != 0};
  grace::launch("fp8_product", stream, shape, kKernels[p.result], x, weight, out, p);
}

}  // namespace

// Call it before the first product on a device, and not while a graph is captured.
GRACE_API int32_t grace_cuda_prepare_fp8_products() {
  return grace::guarded([&] {
    encode_function();
    for (const Kernel kernel : kKernels) {
      grace::allow_memory(kernel, kBlockMemory, "fp8_product: block memory");
    }
  });
}

// `bytes` is the caller's size of a Product, `blocks` the number of the device's multiprocessors.
GRACE_API int32_t grace_cuda_fp8_product(void* stream, int64_t blocks, int64_t bytes,
                                         const Product* product) {
  return grace::guarded([&] {
    grace::require(bytes == sizeof(Product), "fp8_product: another layout of Product");
    grace::require(product->outs % kTile == 0, "fp8_product: outs must be a multiple of 128");
    grace::require(product->result >= 0 && product->result < int64_t{std::size(kKernels)},
                   "fp8_product: no such result");
    if (product->rows > 0) launch_product(stream, *product, blocks);
  });
}
