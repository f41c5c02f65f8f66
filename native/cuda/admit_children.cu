// The admitted children of every beam row, which kernels/decode/admit_children.py defines.
//
// match_children.cuh explains what makes the tests quick. Beam rows share nothing, so a large
// fan-out costs only its own warps. A warp has one row, or several while their children are few.
#include "grace/abi.h"
#include "match_children.cuh"

namespace grace {

namespace {

constexpr int kPointBlock = 256;   // threads of a block that prepares a batch
constexpr int kRowBlock = 128;     // threads of a block that works on one row
constexpr int kSharedBlock = 256;  // threads of a block whose warps have their own rows

// Points a slot at a batch: copies the addresses, and prepares once what every step reads of its
// users. The addresses are the launch's argument, so host memory may change before the launch runs.
// Blocks [requests, 1 + sets, slices]: y = 0 lists users' words, y = 1 + s fills the tables of set
// s.
__global__ void __launch_bounds__(kPointBlock) point(Admission from, Admission* to) {
  const int64_t request = blockIdx.x;
  if (blockIdx.y == 0) {
    if (blockIdx.z != 0 || threadIdx.x != 0) return;
    if (request == 0) *to = from;
    if (from.words == 0 || request >= from.requests) return;
    int32_t* words = from.user_words + request * (1 + from.words);
    int32_t used = 0;
    for (int64_t w = 0; w < from.words; ++w) {
      if (from.users[request * from.words + w] != 0) words[1 + used++] = static_cast<int32_t>(w);
    }
    words[0] = used;
    return;
  }
  if (request >= from.requests) return;
  const AdmissionSet& set = from.sets[blockIdx.y - 1];
  const int64_t first = set.offsets[request];
  const int64_t count = set.offsets[request + 1] - first;
  const int64_t entries = bloom_table_entries(set.bits);
  if (set.query_tables == nullptr || count > kTabledQueries) return;
  for (int64_t at = blockIdx.z * blockDim.x + threadIdx.x; at < entries;
       at += int64_t{gridDim.z} * blockDim.x) {
    set.query_tables[request * entries + at] = bloom_table_entry(
        set.hashes + first, count, {set.bits, set.hashes_per_value},
        static_cast<uint32_t>(at / kNibbleValues), static_cast<uint32_t>(at % kNibbleValues));
  }
}

struct Outputs {
  int32_t* offsets;   // [rows + 1]
  int32_t* tokens;    // [rows * room]
  int32_t* children;  // [rows * room]
  int32_t* counts;    // [rows]
  int32_t room;
};

// Writes the children that pass, in order, from place `next` of the row's room; returns the next
// free place.
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

// Admits the children of a row with kLanes lanes of a warp. All lanes of the warp call this
// together; each group of kLanes may have its own row.
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

// Uses kLanes lanes of a warp per row. If one of the warp's rows has more children than they take
// at once, all lanes of the warp take one row after the other.
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
  for (int lane = 0; lane < kWarp; lane += kLanes) {
    const int32_t its_row = __shfl_sync(kAllLanes, row, lane);
    admit_row<kWarp>(at, beam_row(at, nodes, its_row, rows, beams), its_row, rows, waiting, out);
  }
}

// Uses a block per row, which is for few rows.
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

}  // namespace

// Points a slot at a batch. `bytes` is the caller's size of an Admission; `to` is device memory for
// one.
GRACE_API int32_t grace_cuda_point_admission(void* stream, int64_t bytes, const Admission* from,
                                             Admission* to) {
  return guarded([&] {
    require(bytes == sizeof(Admission), "point_admission: another layout of Admission");
    uint32_t most_bits = 64;
    for (int64_t s = 0; s < from->num_sets; ++s) {
      const AdmissionSet& set = from->sets[s];
      if (set.query_tables != nullptr && set.bits > most_bits) most_bits = set.bits;
    }
    const dim3 blocks(static_cast<unsigned>(from->requests > 0 ? from->requests : 1),
                      static_cast<unsigned>(1 + from->num_sets),
                      static_cast<unsigned>(bloom_table_entries(most_bits) / kPointBlock));
    launch("point_admission", stream, {blocks, kPointBlock}, point, *from, to);
  });
}

// Row r has counts[r] children, from place r * room on; offsets[r] becomes r * room.
//   lanes  the lanes that work on a row of few children: 8, 32, or 128 for a block; each is right
//          for any fan-out
GRACE_API int32_t grace_cuda_admit_children(void* stream, const Admission* slot,
                                            const int32_t* nodes, int64_t requests, int64_t beams,
                                            int64_t room, int32_t lanes, int32_t* offsets,
                                            int32_t* tokens, int32_t* children, int32_t* counts) {
  return guarded([&] {
    require(requests * beams > 0 && requests * beams * room <= INT32_MAX,
            "admit_children: more room than int32 can number");
    const int32_t rows = static_cast<int32_t>(requests * beams);
    const Outputs out{offsets, tokens, children, counts, static_cast<int32_t>(room)};
    const auto admit = [&](const auto& kernel, unsigned threads, size_t of_warp) {
      const dim3 blocks(blocks_of(rows, threads / lanes));
      launch("admit_children", stream, {blocks, threads, threads / kWarp * of_warp}, kernel, slot,
             nodes, rows, static_cast<int32_t>(beams), out);
    };
    if (lanes == 8) {
      admit(admit_with_lanes<8>, kSharedBlock, sizeof(Waiting));
    } else if (lanes == 32) {
      admit(admit_with_lanes<32>, kSharedBlock, sizeof(Waiting));
    } else {
      require(lanes == kRowBlock, "admit_children: lanes must be 8, 32 or 128");
      admit(admit_with_block, kRowBlock, sizeof(Waiting) + sizeof(int32_t));
    }
  });
}

}  // namespace grace
