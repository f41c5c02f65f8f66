// The admitted children of every beam row: kernels/decode/admit_children.py says what they are.
//
// match_children.cuh says what makes the tests quick. Beam rows share nothing, so unequal fan-outs
// cost their own warps only: a warp has one row, or several while their children are few.
#include <cstdint>

#include "admission.cuh"
#include "grace/abi.h"
#include "launch.cuh"
#include "match_children.cuh"

namespace {

using grace::Admission;
using grace::BeamRow;
using grace::in_device_memory;
using grace::kAllLanes;
using grace::kInFlight;
using grace::kPerWarp;
using grace::kWarp;
using grace::test_children;
using grace::Waiting;

constexpr int kRowBlock = 128;     // threads of a block that works on one row
constexpr int kSharedBlock = 256;  // threads of a block whose warps have rows of their own

struct Outputs {
  int32_t* offsets;   // [rows + 1]
  int32_t* tokens;    // [rows * room]
  int32_t* children;  // [rows * room]
  int32_t* counts;    // [rows]
  int32_t room;
};

// Writes what passes, in order, from place `next` of the row's room on; returns the next free one.
template <int kLanes>
__device__ int32_t write_children(const Admission& at, uint32_t first, int32_t next,
                                  uint32_t passes, int32_t begin, const Outputs& out) {
  const int lane = threadIdx.x % kWarp;
  const int group = lane / kLanes * kLanes;
  const uint32_t own = (kAllLanes >> (kWarp - kLanes)) << group;
#pragma unroll
  for (int u = 0; u < kInFlight; ++u) {
    const bool admits = (passes >> u & 1) != 0;
    const uint32_t admitted = __ballot_sync(kAllLanes, admits) & own;
    if (admits) {
      const uint32_t entry = first + u * kLanes;
      const int32_t place = begin + next + __popc(admitted & ((1u << lane) - 1));
      out.tokens[place] = in_device_memory(at.tokens)[entry];
      out.children[place] = static_cast<int32_t>(entry + 1);
    }
    next += __popc(admitted);
  }
  return next;
}

__device__ void close_row(int32_t row, int32_t rows, int32_t count, const Outputs& out) {
  out.counts[row] = count;
  out.offsets[row] = row * out.room;
  if (row + 1 == rows) out.offsets[rows] = rows * out.room;
}

// A row by some lanes of each warp that these share; all lanes of the warp together, which may have
// rows of their own.
template <int kLanes>
__device__ void admit_row(const Admission& at, const BeamRow& beam, int32_t row, int32_t rows,
                          Waiting& waiting, const Outputs& out) {
  const int lane = threadIdx.x % kWarp;
  int32_t count = 0;
  for (uint32_t first = beam.begin + lane % kLanes;
       __any_sync(kAllLanes, first - lane % kLanes < beam.end); first += kInFlight * kLanes) {
    const uint32_t passes = test_children<kLanes>(at, beam, first, waiting);
    count = write_children<kLanes>(at, first, count, passes, row * out.room, out);
  }
  if (lane % kLanes == 0 && row < rows) close_row(row, rows, count, out);
}

// kLanes lanes of a warp per row; but where one of the warp's rows has more children than they take
// at once, all of its lanes for one row after the other.
template <int kLanes>
__global__ void __launch_bounds__(kSharedBlock, 4)
    admit_with_lanes(const Admission* __restrict__ slot, const int32_t* __restrict__ nodes,
                     int32_t rows, int32_t beams, Outputs out) {
  GRACE_BLOCK_MEMORY(memory);
  const Admission& at = *slot;
  Waiting& waiting = reinterpret_cast<Waiting*>(memory)[threadIdx.x / kWarp];
  const int32_t row = static_cast<int32_t>((blockIdx.x * kSharedBlock + threadIdx.x) / kLanes);
  if constexpr (kLanes < kWarp) {
    const BeamRow own = beam_row(at, nodes, row, rows, beams);
    if (!__any_sync(kAllLanes, own.end - own.begin > kInFlight * kLanes)) {
      admit_row<kLanes>(at, own, row, rows, waiting, out);
      return;
    }
  }
#pragma unroll 1
  for (int i = 0; i < kWarp / kLanes; ++i) {
    const int32_t its_row = row - static_cast<int32_t>(threadIdx.x) % kWarp / kLanes + i;
    admit_row<kWarp>(at, beam_row(at, nodes, its_row, rows, beams), its_row, rows, waiting, out);
  }
}

// A block per row: for few rows.
__global__ void __launch_bounds__(kRowBlock, 8)
    admit_with_block(const Admission* __restrict__ slot, const int32_t* __restrict__ nodes,
                     int32_t rows, int32_t beams, Outputs out) {
  GRACE_BLOCK_MEMORY(memory);
  const Admission& at = *slot;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  constexpr int kWarps = kRowBlock / kWarp;
  Waiting& waiting = reinterpret_cast<Waiting*>(memory)[warp];
  int32_t* admitted = reinterpret_cast<int32_t*>(reinterpret_cast<Waiting*>(memory) + kWarps);
  const int32_t row = static_cast<int32_t>(blockIdx.x);
  const BeamRow beam = beam_row(at, nodes, row, rows, beams);
  int32_t count = 0;
  for (uint32_t begin = beam.begin; begin < beam.end; begin += kWarps * kPerWarp) {
    const uint32_t first = begin + warp * kPerWarp + lane;
    const uint32_t passes = test_children<kWarp>(at, beam, first, waiting);
    int32_t own = 0;
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) {
      own += __popc(__ballot_sync(kAllLanes, (passes >> u & 1) != 0));
    }
    if (lane == 0) admitted[warp] = own;
    __syncthreads();
    int32_t next = count;
    for (int w = 0; w < kWarps; ++w) {
      next += w < warp ? admitted[w] : 0;
      count += admitted[w];
    }
    write_children<kWarp>(at, first, next, passes, row * out.room, out);
    __syncthreads();
  }
  if (threadIdx.x == 0) close_row(row, rows, count, out);
}

template <int kLanes>
void launch_lanes(void* stream, const Admission* slot, const int32_t* nodes, int32_t rows,
                  int32_t beams, const Outputs& out) {
  grace::LaunchShape shape{};
  constexpr int32_t rows_per_block = kSharedBlock / kLanes;
  shape.blocks = dim3(static_cast<unsigned>((rows + rows_per_block - 1) / rows_per_block));
  shape.threads = kSharedBlock;
  shape.block_memory = kSharedBlock / kWarp * sizeof(Waiting);
  grace::launch("admit_children", stream, shape, admit_with_lanes<kLanes>, slot, nodes, rows, beams,
                out);
}

void launch_block(void* stream, const Admission* slot, const int32_t* nodes, int32_t rows,
                  int32_t beams, const Outputs& out) {
  constexpr int kWarps = kRowBlock / kWarp;
  grace::LaunchShape shape{};
  shape.blocks = dim3(static_cast<unsigned>(rows));
  shape.threads = kRowBlock;
  shape.block_memory = kWarps * (sizeof(Waiting) + sizeof(int32_t));
  grace::launch("admit_children", stream, shape, admit_with_block, slot, nodes, rows, beams, out);
}

}  // namespace

// Row r has its answer at r * room, counts[r] of them; offsets are filled with r * room.
//   lanes  that work on a row of few children: 8, 16, 32, or 128 for a block; any is right for any
//          fan-out
GRACE_API int32_t grace_cuda_admit_children(void* stream, const Admission* slot,
                                            const int32_t* nodes, int64_t requests, int64_t beams,
                                            int64_t room, int32_t lanes, int32_t* offsets,
                                            int32_t* tokens, int32_t* children, int32_t* counts) {
  return grace::guarded([&] {
    grace::require(requests * beams > 0 && requests * beams * room <= INT32_MAX,
                   "admit_children: more room than int32 can number");
    const int32_t rows = static_cast<int32_t>(requests * beams);
    const int32_t of_each = static_cast<int32_t>(beams);
    const Outputs out{offsets, tokens, children, counts, static_cast<int32_t>(room)};
    if (lanes == 8) {
      launch_lanes<8>(stream, slot, nodes, rows, of_each, out);
    } else if (lanes == 16) {
      launch_lanes<16>(stream, slot, nodes, rows, of_each, out);
    } else if (lanes == 32) {
      launch_lanes<32>(stream, slot, nodes, rows, of_each, out);
    } else {
      grace::require(lanes == kRowBlock, "admit_children: lanes must be 8, 16, 32 or 128");
      launch_block(stream, slot, nodes, rows, of_each, out);
    }
  });
}
