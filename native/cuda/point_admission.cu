// Points a slot at a batch: its addresses, and what of its users is worth preparing once.
#include <cstdint>

#include "admission.cuh"
#include "grace/abi.h"
#include "grace/bloom_tables.h"
#include "launch.cuh"

namespace {

using grace::Admission;
using grace::AdmissionSet;

constexpr int kThreads = 256;

// The addresses come with the launch itself: no memory of the host that may change before it runs.
// Blocks [requests, 1 + sets, slices]: y = 0 lists users' words, y = 1 + s fills tables of set s.
__global__ void __launch_bounds__(kThreads) point(Admission from, Admission* to) {
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
  const int64_t entries = grace::bloom_table_entries(set.bits);
  if (set.query_tables == nullptr || count > grace::kTabledQueries) return;
  for (int64_t at = blockIdx.z * blockDim.x + threadIdx.x; at < entries;
       at += int64_t{gridDim.z} * blockDim.x) {
    set.query_tables[request * entries + at] =
        grace::bloom_table_entry(set.hashes + first, count, {set.bits, set.hashes_per_value},
                                 static_cast<uint32_t>(at / grace::kNibbleValues),
                                 static_cast<uint32_t>(at % grace::kNibbleValues));
  }
}

}  // namespace

// `bytes` is the caller's size of an Admission; `to` is device memory for one.
GRACE_API int32_t grace_cuda_point_admission(void* stream, int64_t bytes, const Admission* from,
                                             Admission* to) {
  return grace::guarded([&] {
    grace::require(bytes == sizeof(Admission), "point_admission: another layout of Admission");
    grace::require(from->num_sets <= grace::kMostSets, "point_admission: more than 8 sets");
    uint32_t most_bits = 64;
    for (int64_t s = 0; s < from->num_sets; ++s) {
      const AdmissionSet& set = from->sets[s];
      grace::require(set.query_tables == nullptr || set.bits <= grace::kTabledBits,
                     "point_admission: tables for too many bits");
      if (set.query_tables != nullptr && set.bits > most_bits) most_bits = set.bits;
    }
    grace::LaunchShape shape{};
    shape.blocks = dim3(static_cast<unsigned>(from->requests > 0 ? from->requests : 1),
                        static_cast<unsigned>(1 + from->num_sets),
                        static_cast<unsigned>(grace::bloom_table_entries(most_bits) / kThreads));
    shape.threads = kThreads;
    grace::launch("point_admission", stream, shape, point, *from, to);
  });
}
