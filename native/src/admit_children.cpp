// The admitted children of every beam row, which kernels/decode/admit_children.py defines.
#include <algorithm>
#include <cstring>
#include <vector>

#include "grace/abi.h"
#include "grace/admission.h"
#include "grace/eligibility.h"
#include "grace/parallel.h"

namespace {

constexpr int32_t kNoNode = -1;       // a dead beam's node
constexpr int64_t kRowsPerTask = 16;  // small: the rows' fan-outs differ a thousandfold

using grace::Admission;
using grace::AdmissionSet;
using grace::eligibility::kGroup;

// Returns whether some row of an entry passes.
template <typename Passes>
bool any_row(const grace::EntryRows& rows, int64_t entry, Passes&& passes) {
  if (rows.offsets == nullptr) return passes(int64_t{rows.ids[entry]});
  for (int64_t i = rows.offsets[entry]; i < rows.offsets[entry + 1]; ++i) {
    if (passes(int64_t{rows.ids[i]})) return true;
  }
  return false;
}

bool admits(const Admission& at, const AdmissionSet* sets, int64_t num_sets, int64_t entry,
            int64_t request) {
  if (at.eligible != nullptr) {
    const uint16_t* masks = at.eligible + request / kGroup * at.eligible_stride;
    const auto passes = [&](int64_t i) { return ((masks[i] >> (request % kGroup)) & 1) != 0; };
    const int64_t inner = at.internal_nodes, node = entry + 1;
    if (node < inner) return passes(node);
    return any_row(at.leaf_rules, node - inner, [&](int64_t rule) { return passes(inner + rule); });
  }
  const auto words = static_cast<int32_t>(at.words);
  const uint64_t* user = at.users + request * at.words;
  if (words > 0 && !any_row(at.bitmask, entry, [&](int64_t row) {
        return grace::contains_all(at.bitmask_table + row * words, user, words);
      })) {
    return false;
  }
  return std::all_of(sets, sets + num_sets, [&](const AdmissionSet& set) {
    const grace::BloomShape shape{set.bits, set.hashes_per_value};
    const int64_t first = set.offsets[request], count = set.offsets[request + 1] - first;
    return any_row(set.rows, entry, [&](int64_t row) {
      return grace::contains_any(set.table + row * (set.bits / 64), set.star[row] != 0,
                                 set.hashes + first, count, shape);
    });
  });
}

// Returns where each row's children begin if all are admitted, and after the last row their number.
std::vector<int64_t> full_offsets(const Admission& at, const int32_t* nodes, int64_t rows) {
  std::vector<int64_t> starts(static_cast<size_t>(rows) + 1, 0);
  for (int64_t r = 0; r < rows; ++r) {
    const int32_t node = nodes[r];
    const int64_t children =
        node == kNoNode ? 0 : at.node_offsets[node + 1] - at.node_offsets[node];
    starts[r + 1] = starts[r] + children;
  }
  return starts;
}

}  // namespace

// Rows are requests * beams, request-major. `bytes` is the caller's size of an Admission.
//   offsets   int32 [rows + 1], filled
//   tokens    int32 [room], like children: the first offsets[rows] are the answer, the rest is work
//             space; room is at least the number of children of all rows
GRACE_API int32_t grace_admit_children(int32_t threads, int64_t bytes, const Admission* admission,
                                       int64_t num_sets, const AdmissionSet* sets, int64_t beams,
                                       const int32_t* nodes, int32_t* offsets, int64_t room,
                                       int32_t* tokens, int32_t* children) {
  return grace::guarded([&] {
    grace::require(bytes == sizeof(Admission), "admit_children: another layout of Admission");
    const Admission& at = *admission;
    const int64_t rows = at.requests * beams;
    const std::vector<int64_t> starts = full_offsets(at, nodes, rows);
    grace::require(room <= INT32_MAX, "admit_children: more children than int32 can number");

    const auto admit_row = [&](int64_t r) {
      if (nodes[r] == kNoNode) return int64_t{0};
      int64_t next = starts[r];
      const int64_t end = at.node_offsets[nodes[r] + 1];
      for (int64_t entry = at.node_offsets[nodes[r]]; entry < end; ++entry) {
        if (!admits(at, sets, num_sets, entry, r / beams)) continue;
        tokens[next] = at.tokens[entry];
        children[next++] = static_cast<int32_t>(entry + 1);
      }
      return next - starts[r];
    };
    grace::parallel_ranges(rows, kRowsPerTask, threads, [&](grace::Range task) {
      for (int64_t r = task.begin; r < task.end; ++r) {
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
