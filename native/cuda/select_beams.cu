// The best candidates of each request, which kernels/decode/select_beams.py defines.
//
// What makes it quick: it neither sorts all candidates nor stores their scores. One kernel reads
// the logits once and writes the best score of each group of a row's candidates. About the k-th
// best of these is a close lower bound of the k-th best candidate, and one histogram finds it. A
// cluster of blocks reads only the groups that reach the bound again, and its first block ranks the
// few candidates above the bound exactly, in buckets. If they are not few, because one row has all
// the best or many are equal, histograms over the candidates reduce them. Most of the time is
// latency, so every wait is for many reads at once, and barriers are few.
#include "block_sort.cuh"
#include "score_rows.cuh"
#include "threshold.cuh"

namespace grace {

namespace {

constexpr int kDeep = 4;  // groups per thread at a time
constexpr int kTile = kDeep * kSelectBlock;
constexpr int kTeam = 4;                  // lanes that read one group's candidates
constexpr int kAtOnce = 4;                // candidates per lane at a time
constexpr int64_t kKeysInBlock = 4096;    // a block's memory has room for twice as many
constexpr int64_t kBeamsOfOneBlock = 64;  // up to this many do not keep a cluster busy

struct Memory {
  union {
    Histogram histogram;
    Buckets buckets;  // once the threshold is known
  };
  int32_t reaching[kTile];  // groups of the tile that reach the limit
  int32_t num_reaching;
  int32_t gathered;  // in the first block: keys of the request so far
  int32_t corrupt;   // in the first block
};

// The keys of some candidates of a lane, kTeam * kGroups places apart. A candidate is its beam <<
// 16 and its place among the beam's; a key is that of its score << 32 and the candidate.
struct Found {
  uint32_t scores[kAtOnce];
  uint32_t first;  // candidate

  __device__ uint64_t key(int i) const {
    return uint64_t{scores[i]} << 32 | (first + static_cast<uint32_t>(i * kTeam * kGroups));
  }
};

__device__ uint32_t lowest_of(uint64_t limit) { return static_cast<uint32_t>(limit >> 32); }

// Calls visit(tile, best) for this block's share of the groups. best[i] is the best score of group
// tile + i * kSelectBlock + threadIdx.x, or -inf if there is no such group. It may be NaN.
template <typename Visit>
__device__ void for_each_tile(const Selection& from, int64_t request, const Visit& visit) {
  const int groups = static_cast<int>(from.beams) * kGroups;
  const float* best_of = from.group_best + request * groups;
  const int together = static_cast<int>(cluster_size()) * kSelectBlock;
  const int deep = min((groups + together - 1) / together, kDeep);
  for (int tile = static_cast<int>(cluster_rank()) * kSelectBlock * deep; tile < groups;
       tile += together * deep) {
    float best[kDeep];
#pragma unroll
    for (int i = 0; i < kDeep; ++i) {
      const int at = tile + i * kSelectBlock + static_cast<int>(threadIdx.x);
      best[i] = i < deep && at < groups ? best_of[at] : -INFINITY;
    }
    visit(tile, best);
  }
}

// Calls visit(reaching, found) with all lanes of a warp together, for the candidates of this
// block's share. Bit i of `reaching` is set if key i of this lane is at most `limit`.
template <typename Logit, typename Visit>
__device__ void for_each_candidate(const Selection& from, int64_t request, uint64_t limit,
                                   Memory& memory, const Visit& visit) {
  constexpr int kStride = kTeam * kGroups;
  for_each_tile(from, request, [&](int tile, const float (&best)[kDeep]) {
    if (threadIdx.x == 0) memory.num_reaching = 0;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kDeep; ++i) {
      if (best[i] > -INFINITY && score_key(best[i]) <= lowest_of(limit)) {
        memory.reaching[atomicAdd(&memory.num_reaching, 1)] = i * kSelectBlock + threadIdx.x;
      }
    }
    __syncthreads();
    const int num_reaching = memory.num_reaching;
    for (int begin = 0; begin < num_reaching; begin += kSelectBlock / kTeam) {
      const int own = begin + threadIdx.x / kTeam;
      const int group = tile + (own < num_reaching ? memory.reaching[own] : 0);
      const int beam = group / kGroups;
      const int64_t row = request * from.beams + beam;
      const int32_t count = own < num_reaching ? candidates_of_row(from, row) : 0;
      ScoredRow<Logit> scored(from, row);
      const float2 normaliser = count > 0 ? from.normalisers[row] : make_float2(0.0f, 0.0f);
      scored.highest = normaliser.x;
      scored.log_sum = normaliser.y;
      int32_t place = group % kGroups + static_cast<int>(threadIdx.x) % kTeam * kGroups;
      for (; __any_sync(kAllLanes, place < count); place += kAtOnce * kStride) {
        float totals[kAtOnce];
        scored.totals(place, kStride, count, totals);
        Found found;
        found.first = static_cast<uint32_t>(beam) << 16 | static_cast<uint32_t>(place);
        uint32_t reaching = 0;
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          found.scores[i] = score_key(totals[i]);
          if (totals[i] > -INFINITY && found.key(i) <= limit) reaching |= 1u << i;
        }
        visit(reaching, found);
      }
    }
    __syncthreads();
  });
}

// Appends the keys up to `limit` to the request's, in any order. Returns their number; only the
// first `capacity` of them are written.
template <typename Logit>
__device__ int32_t gather(const Selection& from, int64_t request, uint64_t limit, Memory& memory,
                          uint64_t* keys) {
  const int lane = threadIdx.x % kWarp;
  const uint32_t lanes_before = (1u << lane) - 1;
  int32_t* gathered = in_block(&memory.gathered, 0);
  const auto append = [&](uint32_t reaching, const Found& found) {
    uint32_t lanes[kAtOnce];
    int32_t total = 0;
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      lanes[i] = __ballot_sync(kAllLanes, (reaching >> i & 1) != 0);
      total += __popc(lanes[i]);
    }
    if (total == 0) return;
    int32_t first = 0;
    if (lane == 0) first = atomicAdd(gathered, total);
    first = __shfl_sync(kAllLanes, first, 0);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int32_t at = first + __popc(lanes[i] & lanes_before);
      if ((reaching >> i & 1) != 0 && at < from.capacity) keys[at] = found.key(i);
      first += __popc(lanes[i]);
    }
  };
  for_each_candidate<Logit>(from, request, limit, memory, append);
  cluster_barrier();
  return *gathered;
}

// Returns a limit that about k groups reach, and so at least k candidates. `finite` becomes false
// if a group has a score that is not finite.
__device__ uint64_t bound_by_groups(const Selection& from, int64_t request, Memory& memory,
                                    bool& finite) {
  constexpr int kAbove = 64 - kWindowBits;
  const uint32_t k = static_cast<uint32_t>(from.k);
  const auto for_each_group = [&](const auto& count) {
    for_each_tile(from, request, [&](int, const float (&best)[kDeep]) {
#pragma unroll
      for (int i = 0; i < kDeep; ++i) {
        if (best[i] == -INFINITY) continue;
        if (best[i] < INFINITY) {
          count(uint64_t{window_of_key(score_key(best[i]))} << kAbove);
        } else {
          finite = false;
        }
      }
    });
  };
  const uint64_t limit = find_threshold(memory.histogram, k, k + k / 4, kDigitBits, for_each_group);
  const uint32_t key = key_of_window(static_cast<uint32_t>(limit >> kAbove));
  return uint64_t{key} << 32 | 0xffffffffu;  // every candidate of such a score, at any place
}

// Returns a limit that at least k candidates reach, and at most as many as can be ranked.
template <typename Logit>
__device__ uint64_t limit_by_candidates(const Selection& from, int64_t request, uint64_t bound,
                                        Memory& memory) {
  const auto for_each_key = [&](const auto& count) {
    for_each_candidate<Logit>(from, request, bound, memory,
                              [&](uint32_t reaching, const Found& found) {
#pragma unroll
                                for (int i = 0; i < kAtOnce; ++i) {
                                  if ((reaching >> i & 1) != 0) count(found.key(i));
                                }
                              });
  };
  return find_threshold(memory.histogram, static_cast<uint32_t>(from.k),
                        static_cast<uint32_t>(from.capacity), 64, for_each_key);
}

// Writes the best of `count` keys, then dead beams. One block calls this.
__device__ void write_beams(const Selection& from, int64_t request, bool corrupt, uint64_t* keys,
                            uint64_t* spare, int32_t count, Buckets& buckets) {
  if (corrupt) count = 0;
  const int32_t kept = static_cast<int32_t>(min(static_cast<int64_t>(count), from.k));
  if (from.ordered != 0 || count > kept) {
    uint64_t* sorted = sort_block(keys, spare, count, buckets);
    if (sorted != keys) spare = keys;
    keys = sorted;
  }
  if (from.ordered == 0) {
    for (int32_t at = threadIdx.x; at < kept; at += kSelectBlock) {
      keys[at] = keys[at] << 32 | keys[at] >> 32;
    }
    __syncthreads();
    keys = sort_block(keys, spare, kept, buckets);
  }
  const int64_t first_row = request * from.beams;
  for (int64_t at = threadIdx.x; at < from.k; at += kSelectBlock) {
    int64_t row = first_row;
    int32_t token = 0, node = -1;
    float score = -INFINITY;
    if (at < kept) {
      const uint64_t key = from.ordered != 0 ? keys[at] : keys[at] << 32 | keys[at] >> 32;
      row += key >> 16 & 0xffff;
      const int64_t candidate = from.offsets[row] + static_cast<int64_t>(key & 0xffff);
      token = from.tokens[candidate];
      node = from.nodes[candidate];
      score = score_of_key(lowest_of(key));
    }
    const int64_t place = request * from.k + at;
    from.kept_parents[place] = static_cast<int32_t>(row);
    from.kept_tokens[place] = token;
    from.kept_nodes[place] = node;
    from.kept_scores[place] = score;
  }
  if (threadIdx.x == 0) from.corrupt[request] = corrupt;
}

template <typename Logit>
__device__ void select_request(const Selection& from, int64_t request, Memory& memory,
                               uint64_t* keys, uint64_t* own_keys) {
  if (threadIdx.x == 0) memory.gathered = memory.corrupt = 0;
  // find_threshold() has a barrier of the cluster: after it, all may write to the first block.
  bool finite = true;
  const uint64_t bound = bound_by_groups(from, request, memory, finite);
  if (!finite) *in_block(&memory.corrupt, 0) = 1;
  int32_t count = gather<Logit>(from, request, bound, memory, keys);
  if (count > from.capacity) {
    const uint64_t limit = limit_by_candidates<Logit>(from, request, bound, memory);
    if (cluster_rank() == 0 && threadIdx.x == 0) memory.gathered = 0;
    cluster_barrier();
    count = gather<Logit>(from, request, limit, memory, keys);
  }
  if (cluster_rank() == 0) {
    write_beams(from, request, memory.corrupt != 0, own_keys, own_keys + from.capacity, count,
                memory.buckets);
  }
  cluster_barrier();  // the first block's memory must exist until all blocks have read it
}

template <typename Logit>
__global__ void __launch_bounds__(kSelectBlock, 1) select_beams(Selection from) {
  GRACE_BLOCK_MEMORY(raw);
  Memory& memory = *reinterpret_cast<Memory*>(raw);
  const int64_t request = blockIdx.x / cluster_size();
  if (from.keys == nullptr) {
    uint64_t* own = reinterpret_cast<uint64_t*>(&memory + 1);
    select_request<Logit>(from, request, memory, in_block(own, 0), own);
  } else {
    uint64_t* keys = from.keys + request * 2 * from.capacity;
    select_request<Logit>(from, request, memory, keys, keys);
  }
}

size_t block_memory(int64_t keys) { return sizeof(Memory) + 2 * keys * sizeof(uint64_t); }

// Returns whether the code that this device runs was compiled for clusters, not whether the device
// has them: a GPU newer than the library runs the portable code, without clusters.
template <typename Logit>
bool in_clusters() {
  const void* kernel = reinterpret_cast<const void*>(&select_beams<Logit>);
  cudaFuncAttributes compiled{};
  check_cuda(cudaFuncGetAttributes(&compiled, kernel), "select_beams: its code");
  return compiled.ptxVersion >= kClusterCode;
}

template <typename Logit>
void launch_select(void* stream, const Selection& from) {
  auto* score = score_rows<Reading::kLoop, Logit>;
  if (from.columns <= kCached * kWarp) {
    const bool fours = from.columns % 4 == 0 &&
                       reinterpret_cast<uintptr_t>(from.logits) % (4 * sizeof(Logit)) == 0;
    score = fours ? score_rows<Reading::kFours, Logit> : score_rows<Reading::kOnes, Logit>;
  }
  const dim3 score_blocks(blocks_of(from.requests * from.beams, kScoreBlock / kWarp));
  launch("score_rows", stream, {score_blocks, kScoreBlock}, score, from);
  const unsigned cluster = from.beams > kBeamsOfOneBlock && in_clusters<Logit>() ? kMostBlocks : 1;
  const dim3 blocks(static_cast<unsigned>(from.requests) * cluster);
  const size_t memory = block_memory(from.keys == nullptr ? from.capacity : 0);
  launch("select_beams", stream, {blocks, kSelectBlock, memory, cluster}, select_beams<Logit>,
         from);
}

}  // namespace

// Call it before the first selection on a device, and not while a graph is captured.
GRACE_API int32_t grace_cuda_prepare_selection() {
  return guarded([&] {
    const size_t memory = block_memory(kKeysInBlock);
    allow_memory(select_beams<float>, memory, "select_beams: block memory");
    allow_memory(select_beams<Bfloat16>, memory, "select_beams: block memory");
  });
}

// `bytes` is the caller's size of a Selection. It has at most 65536 beams, and memory for keys that
// do not fit a block's.
GRACE_API int32_t grace_cuda_select_beams(void* stream, int64_t bytes, const Selection* from) {
  return guarded([&] {
    require(bytes == sizeof(Selection), "select_beams: another layout of Selection");
    with_numbers(from->logit_kind,
                 [&](auto number) { launch_select<decltype(number)>(stream, *from); });
  });
}

}  // namespace grace
