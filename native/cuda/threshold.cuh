// A threshold by histograms: it separates the lowest `want` keys of a cluster, digit by digit.
#pragma once

#include "cluster.cuh"

namespace grace {

constexpr int kDigitBits = 11;
constexpr int kDigits = 1 << kDigitBits;  // two for each thread
constexpr int kSelectBlock = 1024;
static_assert(kDigits == 2 * kSelectBlock);

struct FoundDigit {
  uint32_t before;  // keys with a lower digit than the one found
  uint32_t inside;  // keys with it
  uint32_t digit;
};

struct Histogram {
  uint2 counts[2][kSelectBlock];  // used in turn: other blocks may still read the previous one
  BlockSums sums;
  FoundDigit found;
};

// Returns the counts of this thread's two digits in all blocks of the cluster.
__device__ inline uint2 counts_of_cluster(uint2* own) {
  uint2 total = make_uint2(0, 0);
  uint2 counts[kMostBlocks];
#pragma unroll
  for (uint32_t block = 0; block < kMostBlocks; ++block) {
    counts[block] = block < cluster_size() ? *in_block(own, block) : make_uint2(0, 0);
  }
#pragma unroll
  for (uint32_t block = 0; block < kMostBlocks; ++block) {
    total.x += counts[block].x;
    total.y += counts[block].y;
  }
  return total;
}

// Returns an inclusive limit that keeps at least the `want` lowest keys, or all if there are fewer.
// It keeps at most `enough` (>= want) keys, unless too many share their first `most_bits` bits.
// for_each(visit) calls visit(key) for every key of this block's share, with any lanes active. All
// threads of the cluster call this together, and meet at a barrier of the cluster at least once.
// There are less than 2^32 keys.
template <typename ForEach>
__device__ uint64_t find_threshold(Histogram& histogram, uint32_t want, uint32_t enough,
                                   int most_bits, const ForEach& for_each) {
  uint64_t prefix = 0;
  int done = 0;
  while (true) {
    const int bits = min(kDigitBits, 64 - done), rest = 64 - done - bits;
    uint2* counts = histogram.counts[done / kDigitBits % 2];
    counts[threadIdx.x] = make_uint2(0, 0);
    __syncthreads();
    for_each([&](uint64_t key) {
      if (done > 0 && key >> (64 - done) != prefix) return;
      atomicAdd(&counts->x + ((key >> rest) & ((1u << bits) - 1)), 1u);
    });
    cluster_barrier();
    const uint2 own = counts_of_cluster(counts + threadIdx.x);
    const Sums sums = sums_of_block(own.x + own.y, histogram.sums);
    if (done == 0 && sums.total <= enough) return ~uint64_t{0};
    if (sums.before < want && want - sums.before <= own.x + own.y) {
      const bool second = want - sums.before > own.x;
      histogram.found = {sums.before + (second ? own.x : 0), second ? own.y : own.x,
                         2 * threadIdx.x + second};
    }
    __syncthreads();
    const FoundDigit found = histogram.found;
    prefix = prefix << bits | found.digit;
    done += bits;
    want -= found.before;
    enough -= found.before;
    if (found.inside <= enough || done >= most_bits) {
      return done == 64 ? prefix : prefix << (64 - done) | (~uint64_t{0} >> done);
    }
  }
}

}  // namespace grace
