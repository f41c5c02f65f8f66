// Products of rows and weights rounded to e4m3, and what a decoder's layer does with each result.
//
// Weights and rows stream through shared memory. A block's first warp orders their copies, several
// stages ahead; two groups of four warps multiply, each half of the rows of a tile; one more warp
// for each group moves tiles of 16-bit results. The residual arrives while the product is summed.
//
// A rounded result leaves in the order in which threads have it, 16 or more bytes at a time. The
// next product sums over these columns, so it needs only a weight whose columns are in that order:
// within 128 columns, column 8 j + 2 q + e is at 32 q + 2 j + e.
#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include "grace/abi.h"
#include "hopper.cuh"
#include "launch.cuh"

namespace {

using grace::kWarp;
namespace hopper = grace::hopper;

enum class Result : int64_t {
  kRows,      // out = x W^T in bfloat16
  kResidual,  // out += x W^T in bfloat16, the new rows rounded, and the sums of their squares
  kHidden,    // the ReLU of x W^T, rounded
};

// What is rounded is multiplied by `row_factors` and `times` before: the new rows with kResidual, the
// product with kHidden.
struct Product {
  const void* x;                // e4m3 [rows, inner]
  const void* weight;           // e4m3 [outs, inner]
  const float* weight_scales;   // [outs]
  const float* request_scales;  // [rows / beams], or null
  const float* row_factors;     // [rows]
  void* out;                    // bfloat16 [rows, outs]
  void* rounded;                // e4m3 [rows, outs]
  float* squares;               // [outs / tile_outs, rows]
  int64_t rows, outs, inner, beams, tile_outs, result;
  float times;
};

constexpr int kTileRows = 128, kGroupRows = 64;
constexpr int kStep = 128;       // terms summed per stage: bytes of a swizzled row
constexpr int kBoxColumns = 64;  // 16-bit numbers in a swizzled row
constexpr int kGroupThreads = 128;
constexpr int kThreads = 3 * kGroupThreads;
constexpr int kBlockMemory = 232448;

template <int kOuts, Result kResult>
struct Layout {
  static constexpr bool kTile = kResult != Result::kHidden;  // a 16-bit result
  static constexpr int kStageBytes = (kTileRows + kOuts) * kStep;
  static constexpr int kGroupTileBytes = kGroupRows * kOuts * 2;
  static constexpr int kTileBytes = kTile ? 2 * kGroupTileBytes : 0;
  static constexpr int kBarriers = 256;  // bytes
  static constexpr int kStages = (kBlockMemory - 1024 - kBarriers - kTileBytes) / kStageBytes;
  static constexpr int kBytes = kStages * kStageBytes + kTileBytes + kBarriers + 1024;
};

struct Barriers {
  uint64_t full[8], empty[8];  // of the stages
  uint64_t tile_full[2];       // of a group's tile: the residual is there, or the tile is free
  uint64_t tile_done[2];       // the group has written its results
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

constexpr int kTerms = 32;     // of one instruction
constexpr int kOrdered = 128;  // columns that are put in the threads' order together

struct Tiles {
  uint32_t columns, count;
  __device__ Tiles(const Product& p, int outs)
      : columns(static_cast<uint32_t>((p.outs + outs - 1) / outs)),
        count(columns * static_cast<uint32_t>((p.rows + kTileRows - 1) / kTileRows)) {}
  __device__ int row(uint32_t tile) const { return static_cast<int>(tile / columns) * kTileRows; }
  __device__ int column(uint32_t tile) const { return static_cast<int>(tile % columns); }
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
  return tile + (chunk / 8) * (kGroupRows * 128) + row * 128 + ((chunk % 8) ^ (row % 8)) * 16;
}

template <int kOuts, Result kResult>
__device__ void write_results(const Product& p, float (&sums)[kOuts / 2], uint32_t tile, int row,
                              int first_row, int column) {
  const int lane = threadIdx.x % kWarp, quarter = lane % 4;
  const int warp_row = threadIdx.x % kGroupThreads / kWarp * 16;
  int64_t rows[2];
  float scale[2], factor[2], squares[2] = {0.0f, 0.0f};
  bool live[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    rows[half] = row + first_row + warp_row + lane / 4 + 8 * half;
    live[half] = rows[half] < p.rows;
    scale[half] = 1.0f;
    if (p.request_scales != nullptr && live[half]) {
      scale[half] =
          p.request_scales[static_cast<uint32_t>(rows[half]) / static_cast<uint32_t>(p.beams)];
    }
    factor[half] = kResult != Result::kRows && live[half] ? p.times * p.row_factors[rows[half]] : 0.0f;
  }
  const int matrix_row = warp_row + lane / 8 % 2 * 8 + lane % 8, matrix_chunk = lane / 16;
  uint32_t bytes[2][8];
#pragma unroll
  for (int eight = 0; eight < kOuts / 8; eight += 2) {
    const uint32_t address = tile_address(tile, matrix_row, eight + matrix_chunk);
    uint32_t numbers[4], pair[2][2];
    if (kResult == Result::kResidual) hopper::load_matrices(numbers, address);
#pragma unroll
    for (int part = 0; part < 4; ++part) {  // in the order of the matrices
      const int half = part % 2, at = eight + part / 2;
      const int out = column + 8 * at + 2 * quarter;
      float2 by = make_float2(0.0f, 0.0f);
      if (out < p.outs) by = __ldg(reinterpret_cast<const float2*>(p.weight_scales + out));
      float low = sums[4 * at + 2 * half], high = sums[4 * at + 2 * half + 1];
      if (kResult == Result::kRows) {
        numbers[part] = bfloat16_pair(low * by.x, high * by.y);
      } else if (kResult == Result::kResidual) {
        const float before_low = __uint_as_float(numbers[part] << 16);
        const float before_high = __uint_as_float(numbers[part] & 0xffff0000u);
        low = fmaf(low * scale[half], by.x, before_low);
        high = fmaf(high * scale[half], by.y, before_high);
        squares[half] = fmaf(low, low, fmaf(high, high, squares[half]));
        numbers[part] = bfloat16_pair(low, high);
        pair[half][part / 2] = rounded_pair(low * factor[half], high * factor[half]);
      } else {
        low *= by.x * factor[half];
        high *= by.y * factor[half];
        // NaN stays NaN, which a maximum would hide.
        pair[half][part / 2] = rounded_pair(low < 0.0f ? 0.0f : low, high < 0.0f ? 0.0f : high);
      }
    }
    if (kResult != Result::kHidden) hopper::store_matrices(address, numbers);
    if (kResult != Result::kRows) {
      constexpr int kWords = kOrdered / 16;  // of a thread, row and 128 columns
      const int word = eight / 2 % kWords;
      bytes[0][word] = pair[0][0] | pair[0][1] << 16;
      bytes[1][word] = pair[1][0] | pair[1][1] << 16;
      const int out = column + eight / 16 * kOrdered;
      if (word == kWords - 1 && out < p.outs) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          if (!live[half]) continue;
          uint4* to = reinterpret_cast<uint4*>(static_cast<uint8_t*>(p.rounded) +
                                               rows[half] * p.outs + out + quarter * 32);
          to[0] = make_uint4(bytes[half][0], bytes[half][1], bytes[half][2], bytes[half][3]);
          to[1] = make_uint4(bytes[half][4], bytes[half][5], bytes[half][6], bytes[half][7]);
        }
      }
    }
  }
  if (kResult == Result::kResidual) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float sum = squares[half];
      sum += __shfl_xor_sync(grace::kAllLanes, sum, 1);
      sum += __shfl_xor_sync(grace::kAllLanes, sum, 2);
      if (quarter == 0 && live[half]) p.squares[column / kOuts * p.rows + rows[half]] = sum;
    }
  }
}

#endif

template <int kOuts, Result kResult>
__global__ void __launch_bounds__(kThreads, 1)
    fp8_product(const __grid_constant__ CUtensorMap x_map,
                const __grid_constant__ CUtensorMap weight_map,
                const __grid_constant__ CUtensorMap out_map, const Product p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using Own = Layout<kOuts, kResult>;
  extern __shared__ unsigned char raw[];
  unsigned char* memory = raw + (-hopper::shared_address(raw) & 1023u);
  unsigned char* tiles_memory = memory + Own::kStages * Own::kStageBytes;
  Barriers& barriers = *reinterpret_cast<Barriers*>(tiles_memory + Own::kTileBytes);
  static_assert(sizeof(Barriers) <= Own::kBarriers && Own::kStages <= 8);

  if (threadIdx.x == 0) {
    for (int stage = 0; stage < Own::kStages; ++stage) {
      hopper::init_barrier(&barriers.full[stage], 1);
      hopper::init_barrier(&barriers.empty[stage], 2);
    }
    for (int group = 0; group < 2; ++group) {
      hopper::init_barrier(&barriers.tile_full[group], 1);
      hopper::init_barrier(&barriers.tile_done[group], kGroupThreads);
    }
    hopper::publish_barriers();
  }
  __syncthreads();

  const Tiles tiles(p, kOuts);
  const int steps = static_cast<int>((p.inner + kStep - 1) / kStep);
  const int group = static_cast<int>(threadIdx.x) / kGroupThreads;
  if (group == 2) {
    hopper::give_registers<40>();
    const int warp = threadIdx.x % kGroupThreads / kWarp;
    if (threadIdx.x % kWarp != 0) return;
    if (warp == 0) {
      uint32_t stage = 0, parity = 1;
      for (uint32_t tile = blockIdx.x; tile < tiles.count; tile += gridDim.x) {
        const int row = tiles.row(tile), column = tiles.column(tile) * kOuts;
        for (int step = 0; step < steps; ++step) {
          unsigned char* x = memory + stage * Own::kStageBytes;
          hopper::wait(&barriers.empty[stage], parity);
          hopper::arrive_expecting(&barriers.full[stage], Own::kStageBytes);
          hopper::load_box(x, x_map, &barriers.full[stage], step * kStep, row);
          hopper::load_box(x + kTileRows * kStep, weight_map, &barriers.full[stage], step * kStep,
                           column);
          if (++stage == Own::kStages) stage = 0, parity ^= 1;
        }
      }
    } else if (warp < 3 && Own::kTile) {
      const int mover = warp - 1;
      unsigned char* own = tiles_memory + mover * Own::kGroupTileBytes;
      uint32_t parity = 0;
      for (uint32_t tile = blockIdx.x; tile < tiles.count; tile += gridDim.x) {
        const int row = tiles.row(tile) + mover * kGroupRows, column = tiles.column(tile) * kOuts;
        if (kResult == Result::kResidual) {
          hopper::arrive_expecting(&barriers.tile_full[mover], Own::kGroupTileBytes);
          for (int box = 0; box < kOuts / kBoxColumns; ++box) {
            hopper::load_box(own + box * kGroupRows * 128, out_map, &barriers.tile_full[mover],
                             column + box * kBoxColumns, row);
          }
        } else {
          hopper::arrive(&barriers.tile_full[mover]);
        }
        hopper::wait(&barriers.tile_done[mover], parity);
        parity ^= 1;
        for (int box = 0; box < kOuts / kBoxColumns; ++box) {
          hopper::store_box(out_map, own + box * kGroupRows * 128, column + box * kBoxColumns, row);
        }
        hopper::wait_until_read();
      }
      hopper::wait_until_stored();
    }
    return;
  }

  hopper::take_registers<232>();
  const uint32_t own_tile = hopper::shared_address(tiles_memory + group * Own::kGroupTileBytes);
  const bool first = threadIdx.x % kGroupThreads == 0;
  uint32_t stage = 0, parity = 0, tile_parity = 0;
  for (uint32_t tile = blockIdx.x; tile < tiles.count; tile += gridDim.x) {
    float sums[kOuts / 2];
    uint32_t before = 0;
    for (int step = 0; step < steps; ++step) {
      const unsigned char* x = memory + stage * Own::kStageBytes;
      const uint64_t a = hopper::descriptor(x + group * kGroupRows * kStep);
      const uint64_t b = hopper::descriptor(x + kTileRows * kStep);
      hopper::wait(&barriers.full[stage], parity);
      hopper::begin_products();
#pragma unroll
      for (int part = 0; part < kStep / kTerms; ++part) {
        hopper::add_product(sums, a + 2 * part, b + 2 * part, step + part != 0);
      }
      hopper::commit_products();
      hopper::wait_for_products<1>();
      if (first && step > 0) hopper::arrive(&barriers.empty[before]);
      before = stage;
      if (++stage == Own::kStages) stage = 0, parity ^= 1;
    }
    hopper::wait_for_products<0>();
    hopper::settle(sums);
    if (first) hopper::arrive(&barriers.empty[before]);
    if (Own::kTile) hopper::wait(&barriers.tile_full[group], tile_parity);
    tile_parity ^= 1;
    write_results<kOuts, kResult>(p, sums, own_tile, tiles.row(tile), group * kGroupRows,
                                  tiles.column(tile) * kOuts);
    if (Own::kTile) {
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
                   int64_t columns, int box_rows, int box_columns) {
  CUtensorMap map{};
  const cuuint64_t shape[2] = {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(rows)};
  const cuuint64_t strides[1] = {static_cast<cuuint64_t>(columns * bytes)};
  const cuuint32_t box[2] = {static_cast<cuuint32_t>(box_columns),
                             static_cast<cuuint32_t>(box_rows)};
  const cuuint32_t apart[2] = {1, 1};
  const CUresult status =
      encode_function()(&map, type, 2, const_cast<void*>(matrix), shape, strides, box, apart,
                        CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                        CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  grace::require(status == CUDA_SUCCESS, "fp8_product: the driver refuses a matrix's shape");
  return map;
}

template <int kOuts, Result kResult>
void allow_memory() {
  grace::check_cuda(
      cudaFuncSetAttribute(reinterpret_cast<const void*>(&fp8_product<kOuts, kResult>),
                           cudaFuncAttributeMaxDynamicSharedMemorySize,
                           Layout<kOuts, kResult>::kBytes),
      "fp8_product: block memory");
}

template <int kOuts, Result kResult>
void launch_product(void* stream, const Product& p, int64_t blocks) {
  using Own = Layout<kOuts, kResult>;
  constexpr auto kBytes = CU_TENSOR_MAP_DATA_TYPE_UINT8;
  const CUtensorMap x = map_of(p.x, kBytes, 1, p.rows, p.inner, kTileRows, kStep);
  const CUtensorMap weight = map_of(p.weight, kBytes, 1, p.outs, p.inner, kOuts, kStep);
  CUtensorMap out{};
  if (Own::kTile) {
    out =
        map_of(p.out, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, p.rows, p.outs, kGroupRows, kBoxColumns);
  }
  const int64_t tiles = ((p.rows + kTileRows - 1) / kTileRows) * ((p.outs + kOuts - 1) / kOuts);
  grace::LaunchShape shape{};
  shape.blocks = dim3(static_cast<unsigned>(tiles < blocks ? tiles : blocks));
  shape.threads = kThreads;
  shape.block_memory = Own::kBytes;
  grace::launch("fp8_product", stream, shape, fp8_product<kOuts, kResult>, x, weight, out, p);
}

template <int kOuts>
void launch_result(void* stream, const Product& p, int64_t blocks) {
  switch (static_cast<Result>(p.result)) {
    case Result::kRows:
      return launch_product<kOuts, Result::kRows>(stream, p, blocks);
    case Result::kResidual:
      return launch_product<kOuts, Result::kResidual>(stream, p, blocks);
    case Result::kHidden:
      return launch_product<kOuts, Result::kHidden>(stream, p, blocks);
  }
}

template <int kOuts>
void allow_memories() {
  allow_memory<kOuts, Result::kRows>();
  allow_memory<kOuts, Result::kResidual>();
  allow_memory<kOuts, Result::kHidden>();
}

}  // namespace

// Call it before the first product on a device, and not while a graph is captured.
GRACE_API int32_t grace_cuda_prepare_fp8_products() {
  return grace::guarded([&] {
    encode_function();
    allow_memories<256>();
    allow_memories<128>();
  });
}

// `bytes` is the caller's size of a Product, `blocks` the number of the device's multiprocessors.
GRACE_API int32_t grace_cuda_fp8_product(void* stream, int64_t blocks, int64_t bytes,
                                         const Product* product) {
  return grace::guarded([&] {
    grace::require(bytes == sizeof(Product), "fp8_product: another layout of Product");
    grace::require(product->tile_outs == 128 || product->tile_outs == 256,
                   "fp8_product: tile_outs must be 128 or 256");
    if (product->rows == 0) return;
    if (product->tile_outs == 256) {
      launch_result<256>(stream, *product, blocks);
    } else {
      launch_result<128>(stream, *product, blocks);
    }
  });
}
