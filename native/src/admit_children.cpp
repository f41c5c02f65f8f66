// The admitted children of every beam row, which kernels/decode/admit_children.py defines.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "grace/abi.h"
#include "grace/masks.h"
#include "grace/match.h"
#include "grace/parallel.h"

// One set's matchers, and the Bloom queries of all requests against them.
struct GraceSetMatcher {
  GraceMatcherIds matcher;
  const uint64_t* table;   // [rows, bits / 64]
  const uint8_t* star;     // [rows]
  const int32_t* offsets;  // [requests + 1]: request b's hashes are offsets[b] .. offsets[b + 1]
  const uint64_t* hashes;
  uint32_t bits;
  uint32_t hashes_per_value;
};

namespace {

constexpr int32_t kNoNode = -1;       // a dead beam's node
constexpr int64_t kRowsPerTask = 16;  // small: the rows' fan-outs differ a thousandfold

struct Index {
  const int32_t* node_offsets;
  const int32_t* tokens;
  const GraceMatcherIds* bitmask;
  const uint64_t* bitmask_table;
  int32_t words;  // 0 without bitmask matchers
  const GraceSetMatcher* sets;
  int32_t num_sets;
  const uint16_t* eligible;  // the masks of all nodes, [groups, num_nodes], in mode `exact`
  int64_t num_nodes;
};

bool admits(const Index& index, int64_t entry, const uint64_t* user, int64_t request) {
  if (index.eligible != nullptr) {
    const int64_t group = request / grace::kRequestsPerMask;
    const uint16_t mask = index.eligible[group * index.num_nodes + entry + 1];
    return ((mask >> (request % grace::kRequestsPerMask)) & 1) != 0;
  }
  if (index.words > 0 &&
      !grace::entry_contains_all(*index.bitmask, index.bitmask_table, entry, user, index.words)) {
    return false;
  }
  for (int32_t s = 0; s < index.num_sets; ++s) {
    const GraceSetMatcher& set = index.sets[s];
    const int64_t first = set.offsets[request];
    if (!grace::entry_contains_any(set.matcher, set.table, set.star, entry, set.hashes + first,
                                   set.offsets[request + 1] - first,
                                   {set.bits, set.hashes_per_value})) {
      return false;
    }
  }
  return true;
}

// Returns where each row's children begin if all are admitted, and after the last row their number.
std::vector<int64_t> full_offsets(const int32_t* nodes, int64_t rows, const int32_t* node_offsets,
                                  int64_t internal_nodes) {
  std::vector<int64_t> starts(static_cast<size_t>(rows) + 1, 0);
  for (int64_t r = 0; r < rows; ++r) {
    const int32_t node = nodes[r];
    grace::require(node == kNoNode || (node >= 0 && node < internal_nodes),
                   "admit_children: a node is neither internal nor NO_NODE");
    const int64_t children = node == kNoNode ? 0 : node_offsets[node + 1] - node_offsets[node];
    starts[r + 1] = starts[r] + children;
  }
  return starts;
}

}  // namespace

// Rows are requests * beams, request-major.
//   users     uint64 [requests, words]; words is 0 without bitmask matchers, as in mode `cd`
//   eligible  uint16 [ceil(requests / 16), num_nodes] in mode `exact`, which has no matchers
//   offsets   int32 [rows + 1], filled
//   tokens    int32 [room], like children: the first offsets[rows] are the answer, the rest is work
//             space; room is at least the number of children of all rows
GRACE_API int32_t grace_admit_children(
    int32_t threads, int64_t requests, int64_t beams, const int32_t* nodes, int64_t internal_nodes,
    const int32_t* node_offsets, const int32_t* csr_tokens, const GraceMatcherIds* bitmask,
    const uint64_t* bitmask_table, int32_t words, const uint64_t* users,
    const GraceSetMatcher* sets, int32_t num_sets, const uint16_t* eligible, int64_t num_nodes,
    int32_t* offsets, int64_t room, int32_t* tokens, int32_t* children) {
  return grace::guarded([&] {
    const Index index{node_offsets, csr_tokens, bitmask,  bitmask_table, words,
                      sets,         num_sets,   eligible, num_nodes};
    const int64_t rows = requests * beams;
    const std::vector<int64_t> starts = full_offsets(nodes, rows, node_offsets, internal_nodes);
    grace::require(starts[rows] <= room, "admit_children: less room than children");
    grace::require(room <= INT32_MAX, "admit_children: more children than int32 can number");

    const auto admit_row = [&](int64_t r) {
      if (nodes[r] == kNoNode) return int64_t{0};
      const int64_t request = r / beams;
      int64_t at = starts[r];
      for (int64_t entry = node_offsets[nodes[r]]; entry < node_offsets[nodes[r] + 1]; ++entry) {
        if (!admits(index, entry, users + request * words, request)) continue;
        tokens[at] = csr_tokens[entry];
        children[at] = static_cast<int32_t>(entry + 1);
        ++at;
      }
      return at - starts[r];
    };
    const int64_t tasks = (rows + kRowsPerTask - 1) / kRowsPerTask;
    grace::parallel_tasks(tasks, threads, [&](int64_t task) {
      const int64_t end = std::min(rows, (task + 1) * kRowsPerTask);
      for (int64_t r = task * kRowsPerTask; r < end; ++r) {
        offsets[r + 1] = static_cast<int32_t>(admit_row(r));
      }
    });

    offsets[0] = 0;
    for (int64_t r = 0; r < rows; ++r) {
      const int32_t count = offsets[r + 1];
      if (count > 0 && offsets[r] < starts[r]) {
        std::memmove(tokens + offsets[r], tokens + starts[r], count * sizeof *tokens);
        std::memmove(children + offsets[r], children + starts[r], count * sizeof *children);
      }
      offsets[r + 1] = offsets[r] + count;
    }
  });
}
