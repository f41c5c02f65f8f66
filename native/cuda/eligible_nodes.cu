// The masks of rules and inner nodes, which kernels/eligibility/eligible_nodes.py defines: a mask
// has one bit for each of 16 requests.
//
// A step reads its lists once, from memory that is larger than the cache, and looks up masks that
// fit it. So lists are read past the cache, and many loads are in flight at once. Most ranges are
// short, a few are long. A warp reads the members of neighbouring ranges as one list, side by side,
// and then splits them by range.
#include <vector>

#include "eligibility.cuh"

namespace grace::eligibility {
namespace {

constexpr int kBlock = 256;     // threads of a block
constexpr int kRules = 4;       // rules of a thread, in flight at once
constexpr int kRangeWarps = 4;  // warps of a block that joins ranges
constexpr int kRangesOfLane = 4;
constexpr int kTile = 512;  // members that a warp reads before it splits them by range
constexpr int kAtOnce = 8;  // members of a lane, in flight at once
constexpr int kShort = 16;  // the most members that one lane joins alone
static_assert(kTile % (kAtOnce * kWarp) == 0, "lanes fill a tile in whole rounds");
constexpr int kMostPredicates = 8;

struct RowsOfRules {
  const uint16_t* masks;  // [groups, rows]
  RuleRows rules;
};

struct Predicates {
  RowsOfRules each[kMostPredicates];
  int32_t count;
};

// Writes rules + 1 masks of each group, `stride` apart; the last rule stands for stopped ads, and
// nobody passes it. With `more`, rules must also have passed the predicates of an earlier launch.
__global__ void __launch_bounds__(kBlock)
    rule_masks(Predicates predicates, int64_t rules, int64_t requests, bool more, uint16_t* masks,
               int64_t stride) {
  const int64_t group = blockIdx.y;
  uint16_t* own = masks + group * stride;
  const int64_t first = int64_t{blockIdx.x} * (kBlock * kRules) + threadIdx.x;
  uint32_t passes[kRules];
#pragma unroll
  for (int u = 0; u < kRules; ++u) {
    const int64_t rule = first + u * kBlock;
    passes[u] = rule < rules ? requests_of_group(requests, group) : 0;
    if (more && rule < rules) passes[u] = own[rule];
  }
#pragma unroll 1
  for (int32_t p = 0; p < predicates.count; p += 2) {
    const bool two = p + 1 < predicates.count;
    const RowsOfRules& one = predicates.each[p];
    const RowsOfRules& other = predicates.each[two ? p + 1 : p];
    int32_t ids[kRules], other_ids[kRules];
#pragma unroll
    for (int u = 0; u < kRules; ++u) {
      const int64_t rule = first + u * kBlock;
      const bool open = passes[u] != 0;  // a rule that nobody passes any more reads nothing
      ids[u] = open ? __ldcs(one.rules.ids + rule * one.rules.id_stride) : -1;
      other_ids[u] = open && two ? __ldcs(other.rules.ids + rule * other.rules.id_stride) : -1;
    }
#pragma unroll
    for (int u = 0; u < kRules; ++u) {
      const uint32_t held = ids[u] >= 0 ? one.masks[group * one.rules.rows + ids[u]] : 0xffffu;
      const uint32_t also =
          other_ids[u] >= 0 ? other.masks[group * other.rules.rows + other_ids[u]] : 0xffffu;
      passes[u] &= held & also;
    }
  }
#pragma unroll
  for (int u = 0; u < kRules; ++u) {
    const int64_t rule = first + u * kBlock;
    if (rule <= rules) own[rule] = static_cast<uint16_t>(passes[u]);
  }
}

// Range i, a node, has the members offsets[i] .. offsets[i + 1], which are children with the masks
// masks[j]. Above the leaves, its members are the rules of all these children: rule ids[j] of child
// c, from borders[c - first_child] on, has the mask masks[ids[j]].
struct Ranges {
  const int32_t* offsets;
  int64_t count;
  int32_t of_warp;  // the ranges of a warp
  const int32_t* ids;
  const int32_t* borders;
  int64_t first_child;
  const uint16_t* masks;  // of group 0
  uint16_t* any;          // [count]: the OR of each range's masks
  int64_t stride;         // of masks and any, from group to group
};

// Returns where the members of range i begin, after the last range where they end.
template <bool kIds>
__device__ int32_t border(const Ranges& of, int64_t i) {
  const int32_t child = __ldcs(of.offsets + i);
  return kIds ? __ldcs(of.borders + (child - of.first_child)) : child;
}

// Writes the masks of the members first .. first + size into a tile.
template <bool kIds>
__device__ void fill_tile(const Ranges& of, const uint16_t* masks, int32_t first, int32_t size,
                          uint16_t* tile) {
  const int32_t lane = threadIdx.x % kWarp;
#pragma unroll 1
  for (int32_t begin = 0; begin < size; begin += kAtOnce * kWarp) {
    int32_t members[kAtOnce];
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u) {
      const int32_t place = begin + u * kWarp + lane;
      members[u] = place < size ? first + place : -1;
      if (kIds && place < size) members[u] = __ldcs(of.ids + first + place);
    }
    uint16_t held[kAtOnce];
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u) held[u] = members[u] >= 0 ? masks[members[u]] : 0;
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u) tile[begin + u * kWarp + lane] = held[u];
  }
}

// Returns the OR of the masks from .. until of a tile. All lanes of a warp share long parts.
__device__ uint32_t any_in_tile(const uint16_t* tile, int32_t from, int32_t until) {
  const int32_t lane = threadIdx.x % kWarp;
  const bool is_long = until - from > kShort;
  uint32_t any = 0;
#pragma unroll 1
  for (int32_t at = from; at < until && !is_long; ++at) any |= tile[at];
#pragma unroll 1
  for (uint32_t owners = __ballot_sync(kAllLanes, is_long); owners != 0; owners &= owners - 1) {
    const int32_t owner = __ffs(static_cast<int>(owners)) - 1;
    const int32_t end = __shfl_sync(kAllLanes, until, owner);
    uint32_t found = 0;
#pragma unroll 1
    for (int32_t at = __shfl_sync(kAllLanes, from, owner) + lane; at < end; at += kWarp) {
      found |= tile[at];
    }
    found = __reduce_or_sync(kAllLanes, found);
    if (lane == owner) any = found;
  }
  return any;
}

// Joins the neighbouring ranges of each warp, tile by tile.
template <bool kIds>
__global__ void __launch_bounds__(kRangeWarps* kWarp) any_of_ranges(Ranges of) {
  GRACE_BLOCK_MEMORY(memory);
  const int32_t lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  uint16_t* tile = reinterpret_cast<uint16_t*>(memory) + warp * kTile;
  const uint16_t* masks = of.masks + blockIdx.y * of.stride;
  const int64_t first = (int64_t{blockIdx.x} * kRangeWarps + warp) * of.of_warp;
  if (first >= of.count) return;
  const int32_t own = static_cast<int32_t>(min(int64_t{of.of_warp}, of.count - first));
  const int32_t last = border<kIds>(of, first + own);
  int32_t begin[kRangesOfLane], end[kRangesOfLane];
  uint32_t any[kRangesOfLane];
#pragma unroll
  for (int u = 0; u < kRangesOfLane; ++u) {
    const int32_t range = lane + u * kWarp;
    begin[u] = range < own ? border<kIds>(of, first + range) : last;
    end[u] = range < own ? border<kIds>(of, first + range + 1) : last;
    any[u] = 0;
  }
#pragma unroll 1
  for (int32_t at = __shfl_sync(kAllLanes, begin[0], 0), size; at < last; at += size) {
    size = min(last - at, kTile);
    fill_tile<kIds>(of, masks, at, size, tile);
    __syncwarp();
#pragma unroll
    for (int u = 0; u < kRangesOfLane; ++u) {
      any[u] |= any_in_tile(tile, max(begin[u] - at, 0), min(end[u] - at, size));
    }
    __syncwarp();
  }
  uint16_t* out = of.any + blockIdx.y * of.stride + first;
#pragma unroll
  for (int u = 0; u < kRangesOfLane; ++u) {
    const int32_t range = lane + u * kWarp;
    if (range < own) out[range] = static_cast<uint16_t>(any[u]);
  }
}

bool asks(const ListQueries& queries) { return queries.open != nullptr; }
bool asks(const double* numbers) { return numbers != nullptr; }

// Adds the masks of the rows of tables about which requests ask, as many at once as a launch takes.
template <typename Table, typename Asked>
void add_table_rows(Call& call, const Table* tables, const Asked* asked, int64_t count,
                    void (*write)(Call&, const Table*, const Asked*, int64_t, const uint16_t**),
                    std::vector<RowsOfRules>& rows) {
  Table own[kMostTables];
  Asked of_own[kMostTables];
  int64_t taken = 0;
  for (int64_t i = 0; i < count; ++i) {
    if (asks(asked[i])) {
      own[taken] = tables[i];
      of_own[taken++] = asked[i];
    }
    if (taken == 0 || (taken < kMostTables && i + 1 < count)) continue;
    const uint16_t* masks[kMostTables];
    write(call, own, of_own, taken, masks);
    for (int64_t t = 0; t < taken; ++t) rows.push_back({masks[t], own[t].rules});
    taken = 0;
  }
}

// Returns the masks of the rows of all predicates that may fail a request.
// Attributes and sets come first: they leave few rules to look up in what follows.
std::vector<RowsOfRules> predicate_rows(Call& call, const Plan& plan) {
  std::vector<RowsOfRules> rows;
  for (int64_t i = 0; i < plan.num_attributes; ++i) {
    rows.push_back({attribute_rows(call, plan.attributes[i]), plan.attributes[i].rules});
  }
  add_table_rows(call, plan.lists, call.batch.lists, plan.num_lists, list_rows, rows);
  add_table_rows(call, plan.intervals, call.batch.numbers, plan.num_intervals, interval_rows, rows);
  for (int64_t i = 0; i < plan.num_others; ++i) {
    rows.push_back({call.batch.others[i].masks, plan.others[i]});
    rows.back().rules.rows = call.batch.others[i].rows;
  }
  return rows;
}

// Writes the masks of rules, and of the one that nobody passes.
void join_rows(const Call& call, const std::vector<RowsOfRules>& rows, int64_t rules,
               uint16_t* masks, int64_t stride) {
  const dim3 blocks(static_cast<unsigned>(rules / (kBlock * kRules) + 1),
                    static_cast<unsigned>(call.groups));
  size_t first = 0;
  do {
    Predicates predicates{};
    while (first + predicates.count < rows.size() && predicates.count < kMostPredicates) {
      predicates.each[predicates.count] = rows[first + predicates.count];
      ++predicates.count;
    }
    call.launch(kRuleStep, "rule_masks", {blocks, kBlock}, rule_masks, predicates, rules,
                call.batch.requests, first > 0, masks, stride);
    first += kMostPredicates;
  } while (first < rows.size());
}

template <bool kIds>
void join_ranges(const Call& call, int64_t step, const Ranges& of) {
  require(of.of_warp >= 1 && of.of_warp <= kRangesOfLane * kWarp,
          "eligible_nodes: a warp has 1 to 128 ranges");
  if (of.count == 0) return;  // a snapshot without ads has only the root
  const dim3 blocks(blocks_of(of.count, int64_t{of.of_warp} * kRangeWarps),
                    static_cast<unsigned>(call.groups));
  constexpr size_t memory = kRangeWarps * kTile * sizeof(uint16_t);
  call.launch(step, "any_of_ranges", {blocks, kRangeWarps * kWarp, memory}, any_of_ranges<kIds>,
              of);
}

}  // namespace

// Writes the masks of inner nodes and rules, or without scratch memory only `scratch_bytes`. The
// sizes are those that the caller has for Plan and Batch.
GRACE_API int32_t grace_cuda_eligible_nodes(void* stream, int64_t plan_size, int64_t batch_size,
                                            const Plan* plan, Batch* batch) {
  return guarded([&] {
    require(plan_size == sizeof(Plan) && batch_size == sizeof(Batch),
            "eligible_nodes: another layout of Plan or Batch");
    Call call(stream, *batch);
    const std::vector<RowsOfRules> rows = predicate_rows(call, *plan);
    if (batch->scratch == nullptr) {
      batch->scratch_bytes = call.used();
      return;
    }
    uint16_t* const eligible = batch->eligible;
    const int64_t stride = masks_of_group(*plan), first_leaf = plan->level_starts[plan->levels];
    uint16_t* const rules = eligible + first_leaf;
    join_rows(call, rows, plan->rules, rules, stride);
    for (int64_t level = plan->levels; level-- > 0;) {
      const int64_t first = plan->level_starts[level];
      // Child entry j leads to node j + 1.
      const bool last = level + 1 == plan->levels;
      const auto join = last ? join_ranges<true> : join_ranges<false>;
      join(call, kLevelSteps + level,
           {plan->node_offsets + first, plan->level_starts[level + 1] - first,
            static_cast<int32_t>(plan->of_warp[level]), plan->leaf_rules, plan->leaf_offsets,
            first_leaf - 1, last ? rules : eligible + 1, eligible + first, stride});
    }
  });
}

}  // namespace grace::eligibility
