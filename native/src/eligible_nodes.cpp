// The masks of all nodes, which kernels/eligibility/eligible_nodes.py defines: a rule's is the AND
// of its rows', a leaf's the OR of its rules', and any other node's the OR of its children's.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "grace/abi.h"
#include "grace/masks.h"
#include "grace/parallel.h"

// The masks of one predicate's rows, and each rule's row.
struct GracePredicateRows {
  const uint16_t* masks;  // [groups, rows]
  int64_t rows;
  const int32_t* ids;  // rule r has row ids[r * stride]
  int64_t stride;
};

namespace {

constexpr int64_t kPerTask = 16384;  // rules, leaves or nodes

struct Graph {
  const GracePredicateRows* predicates;
  int64_t num_predicates;
  int64_t num_rules;
  const int32_t* leaf_offsets;
  const int32_t* leaf_rules;
  const int32_t* node_offsets;
  const int64_t* level_starts;  // [levels + 1]
  int64_t levels;
};

void join_rows(const Graph& graph, int64_t group, uint16_t all, grace::Range range,
               uint16_t* rules) {
  std::fill(rules + range.begin, rules + range.end, all);
  for (int64_t p = 0; p < graph.num_predicates; ++p) {
    const GracePredicateRows& predicate = graph.predicates[p];
    const uint16_t* masks = predicate.masks + group * predicate.rows;
    for (int64_t r = range.begin; r < range.end; ++r) {
      rules[r] &= masks[predicate.ids[r * predicate.stride]];
    }
  }
}

void join_rules(const Graph& graph, const uint16_t* rules, grace::Range range, uint16_t* leaves) {
  int32_t at = graph.leaf_offsets[range.begin];
  for (int64_t leaf = range.begin; leaf < range.end; ++leaf) {
    const int32_t end = graph.leaf_offsets[leaf + 1];
    uint16_t any = 0;
    for (; at < end; ++at) any |= rules[graph.leaf_rules[at]];
    leaves[leaf] = any;
  }
}

void join_children(const Graph& graph, grace::Range range, uint16_t* nodes) {
  int32_t child = graph.node_offsets[range.begin] + 1;  // entry j leads to node j + 1
  for (int64_t node = range.begin; node < range.end; ++node) {
    const int32_t end = graph.node_offsets[node + 1] + 1;
    uint16_t any = 0;
    for (; child < end; ++child) any |= nodes[child];
    nodes[node] = any;
  }
}

}  // namespace

// eligible uint16 [groups, nodes]: filled
GRACE_API int32_t grace_eligible_nodes(int32_t threads, int64_t requests,
                                       const GracePredicateRows* predicates, int64_t num_predicates,
                                       int64_t num_rules, const int32_t* leaf_offsets,
                                       const int32_t* leaf_rules, const int32_t* node_offsets,
                                       const int64_t* level_starts, int64_t levels,
                                       uint16_t* eligible) {
  return grace::guarded([&] {
    const Graph graph{predicates, num_predicates, num_rules,    leaf_offsets,
                      leaf_rules, node_offsets,   level_starts, levels};
    const int64_t first_leaf = level_starts[levels - 1];
    const int64_t num_nodes = level_starts[levels];
    // One more rule than there are: the one that nobody passes stands for stopped ads.
    std::vector<uint16_t> rules(num_rules + 1, 0);
    for (int64_t first = 0; first < requests; first += grace::kRequestsPerMask) {
      const int64_t group = first / grace::kRequestsPerMask;
      const uint16_t all = grace::mask_of(std::min(requests - first, grace::kRequestsPerMask));
      uint16_t* nodes = eligible + group * num_nodes;
      grace::parallel_ranges(num_rules, kPerTask, threads, [&](grace::Range range) {
        join_rows(graph, group, all, range, rules.data());
      });
      grace::parallel_ranges(num_nodes - first_leaf, kPerTask, threads, [&](grace::Range range) {
        join_rules(graph, rules.data(), range, nodes + first_leaf);
      });
      for (int64_t level = levels - 2; level >= 0; --level) {
        const int64_t begin = level_starts[level];
        grace::parallel_ranges(
            level_starts[level + 1] - begin, kPerTask, threads, [&](grace::Range range) {
              join_children(graph, {begin + range.begin, begin + range.end}, nodes);
            });
      }
    }
  });
}
