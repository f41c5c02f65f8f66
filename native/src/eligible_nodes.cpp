// The masks of rows, rules and inner nodes, which kernels/eligibility/eligible_nodes.py defines.
// Bit i of a group's mask is its request i.
#include <algorithm>
#include <array>
#include <memory>
#include <vector>

#include "grace/abi.h"
#include "grace/eligibility.h"
#include "grace/parallel.h"

namespace grace::eligibility {
namespace {

constexpr int64_t kBitmaskRowsPerTask = 8192;
constexpr int64_t kListRowsPerTask = 65536;  // both masks of a task fit the L2 cache
constexpr int64_t kPerTask = 16384;          // rules or nodes

using Masks = std::unique_ptr<uint16_t[]>;  // [groups, rows]

struct RowsOfRules {
  const uint16_t* masks;
  RuleRows rules;
};

// Calls make(first, count, masks) for each group of requests, `first` .. `first + count`.
template <typename Make>
Masks masks_of_groups(int64_t requests, int64_t rows, Make&& make) {
  const int64_t groups = (requests + kGroup - 1) / kGroup;
  Masks masks(new uint16_t[groups * rows]);
  for (int64_t group = 0; group < groups; ++group) {
    const int64_t first = group * kGroup;
    make(first, std::min<int64_t>(requests - first, kGroup), masks.get() + group * rows);
  }
  return masks;
}

// Answers for each byte of a bitmask row at once: which users of a group have no bit in this byte
// that the row lacks. Bytes in which no user has a bit pass everyone, and are left out.
class UserBytes {
 public:
  UserBytes(const uint64_t* users, int64_t requests, int64_t words)
      : all_(static_cast<uint16_t>(requests_of_group(requests, 0))) {
    for (int64_t byte = 0; byte < words * 8; ++byte) {
      uint64_t any = 0;
      for (int64_t b = 0; b < requests; ++b) any |= byte_of(users + b * words, byte);
      if (any == 0) continue;
      bytes_.push_back(byte);
      std::array<uint16_t, 256>& passing = passing_.emplace_back();
      for (uint64_t row = 0; row < 256; ++row) {
        uint16_t mask = 0;
        for (int64_t b = 0; b < requests; ++b) {
          const uint64_t user = byte_of(users + b * words, byte);
          if (contains_all(&row, &user, 1)) mask |= static_cast<uint16_t>(1U << b);
        }
        passing[row] = mask;
      }
    }
  }

  uint16_t users_passing(const uint64_t* row, int64_t word_stride) const {
    uint16_t mask = all_;
    for (size_t i = 0; i < bytes_.size(); ++i) {
      mask &= passing_[i][byte_of(row, bytes_[i], word_stride)];
    }
    return mask;
  }

 private:
  static uint64_t byte_of(const uint64_t* row, int64_t byte, int64_t word_stride = 1) {
    return (row[byte / 8 * word_stride] >> (byte % 8 * 8)) & 255;
  }

  uint16_t all_;
  std::vector<int64_t> bytes_;
  std::vector<std::array<uint16_t, 256>> passing_;
};

Masks attribute_rows(const AttributeTable& table, const Batch& batch, int32_t threads) {
  const int64_t words = table.words_per_row, rows = table.rules.rows;
  return masks_of_groups(batch.requests, rows, [&](int64_t first, int64_t count, uint16_t* masks) {
    const UserBytes group(batch.bitmask + first * words, count, words);
    parallel_ranges(rows, kBitmaskRowsPerTask, threads, [&](Range range) {
      for (int64_t r = range.begin; r < range.end; ++r) {
        masks[r] = group.users_passing(table.words + r * table.row_stride, table.word_stride);
      }
    });
  });
}

Masks interval_rows(const IntervalTable& table, const double* numbers, int64_t requests,
                    int32_t threads) {
  const int64_t rows = table.rules.rows;
  return masks_of_groups(requests, rows, [&](int64_t first, int64_t count, uint16_t* masks) {
    parallel_ranges(rows, kPerTask, threads, [&](Range range) {
      for (int64_t r = range.begin; r < range.end; ++r) {
        masks[r] = static_cast<uint16_t>(
            users_within(table.rows[r], numbers + first, count, table.missing_passes != 0));
      }
    });
  });
}

// Adds a request to the masks of the rows in [range.begin, range.end) that name one of its values.
void walk(const PostingLists& lists, const NamedValues& values, int64_t request, Range range,
          uint16_t bit, uint16_t* masks) {
  for (int32_t v = values.offsets[request]; v < values.offsets[request + 1]; ++v) {
    const int64_t* offsets = lists.offsets + values.ids[v];
    const int32_t* end = lists.rows + offsets[1];
    const int32_t* at = std::lower_bound(lists.rows + offsets[0], end, range.begin);
    for (; at < end && *at < range.end; ++at) masks[*at - range.begin] |= bit;
  }
}

// The masks of the rows in a range, for the requests first .. first + requests.
void match_lists(const ListTable& table, const ListQueries& queries, int64_t first,
                 int64_t requests, Range range, uint16_t* included) {
  std::vector<uint16_t> excluded(range.end - range.begin, 0);
  std::fill_n(included, range.end - range.begin, uint16_t{0});
  uint16_t with_include = 0, with_exclude = 0;
  for (int64_t i = 0; i < requests; ++i) {
    const auto bit = static_cast<uint16_t>(1U << i);
    if ((queries.open[first + i] & kHasInclude) != 0) with_include |= bit;
    if ((queries.open[first + i] & kHasExclude) != 0) with_exclude |= bit;
    walk(table.include, queries.included, first + i, range, bit, included);
    walk(table.exclude, queries.excluded, first + i, range, bit, excluded.data());
  }
  const auto all = static_cast<uint16_t>(requests_of_group(requests, 0));
  const uint16_t starts[] = {all, with_include, with_exclude, with_include};  // by kind
  for (int64_t r = range.begin; r < range.end; ++r) {
    const int64_t at = r - range.begin;
    included[at] = static_cast<uint16_t>((included[at] | starts[table.kinds[r]]) & ~excluded[at]);
  }
}

void require_known(const NamedValues& values, int64_t requests, int64_t num_values) {
  require(std::all_of(values.ids, values.ids + values.offsets[requests],
                      [&](int32_t value) { return value >= 0 && value < num_values; }),
          "eligible_nodes: a request's value is not one of the component's");
}

Masks list_rows(const ListTable& table, const ListQueries& queries, int64_t requests,
                int32_t threads) {
  require_known(queries.included, requests, table.num_values);
  require_known(queries.excluded, requests, table.num_values);
  const int64_t rows = table.rules.rows;
  return masks_of_groups(requests, rows, [&](int64_t first, int64_t count, uint16_t* masks) {
    parallel_ranges(rows, kListRowsPerTask, threads, [&](Range range) {
      match_lists(table, queries, first, count, range, masks + range.begin);
    });
    for (int64_t i = 0; i < table.num_grouped; ++i) {
      for (int32_t g = table.group_offsets[i]; g < table.group_offsets[i + 1]; ++g) {
        masks[table.grouped[i]] &= masks[g];
      }
    }
  });
}

void join_rows(const std::vector<RowsOfRules>& predicates, int64_t group, uint16_t all, Range range,
               uint16_t* rules) {
  std::fill(rules + range.begin, rules + range.end, all);
  for (const RowsOfRules& predicate : predicates) {
    const uint16_t* masks = predicate.masks + group * predicate.rules.rows;
    for (int64_t r = range.begin; r < range.end; ++r) {
      rules[r] &= masks[predicate.rules.ids[r * predicate.rules.id_stride]];
    }
  }
}

// Joins the rules of all leaves of nodes of the last level.
void join_rules(const Plan& plan, Range range, uint16_t* nodes) {
  const int64_t first_entry = plan.level_starts[plan.levels] - 1;  // it leads to the first leaf
  const uint16_t* rules = nodes + plan.level_starts[plan.levels];
  int32_t at = plan.leaf_offsets[plan.node_offsets[range.begin] - first_entry];
  for (int64_t node = range.begin; node < range.end; ++node) {
    const int32_t end = plan.leaf_offsets[plan.node_offsets[node + 1] - first_entry];
    uint16_t any = 0;
    for (; at < end; ++at) any |= rules[plan.leaf_rules[at]];
    nodes[node] = any;
  }
}

void join_children(const Plan& plan, Range range, uint16_t* nodes) {
  int32_t child = plan.node_offsets[range.begin] + 1;  // entry j leads to node j + 1
  for (int64_t node = range.begin; node < range.end; ++node) {
    const int32_t end = plan.node_offsets[node + 1] + 1;
    uint16_t any = 0;
    for (; child < end; ++child) any |= nodes[child];
    nodes[node] = any;
  }
}

// Writes the masks of one group.
void join_group(const Plan& plan, const Batch& batch, const std::vector<RowsOfRules>& predicates,
                int64_t group, int32_t threads) {
  const auto all = static_cast<uint16_t>(requests_of_group(batch.requests, group));
  uint16_t* nodes = batch.eligible + group * masks_of_group(plan);
  uint16_t* rules = nodes + plan.level_starts[plan.levels];
  parallel_ranges(plan.rules, kPerTask, threads,
                  [&](Range range) { join_rows(predicates, group, all, range, rules); });
  rules[plan.rules] = 0;  // the rule of stopped ads
  for (int64_t level = plan.levels; level-- > 0;) {
    const int64_t begin = plan.level_starts[level];
    const auto join = level + 1 == plan.levels ? join_rules : join_children;
    parallel_ranges(plan.level_starts[level + 1] - begin, kPerTask, threads, [&](Range range) {
      join(plan, {begin + range.begin, begin + range.end}, nodes);
    });
  }
}

}  // namespace

// Writes the masks of inner nodes and rules. The sizes are those that the caller has for Plan and
// Batch.
GRACE_API int32_t grace_eligible_nodes(int32_t threads, int64_t plan_size, int64_t batch_size,
                                       const Plan* plan, const Batch* batch) {
  return guarded([&] {
    require(plan_size == sizeof(Plan) && batch_size == sizeof(Batch),
            "eligible_nodes: another layout of Plan or Batch");
    std::vector<Masks> made;
    std::vector<RowsOfRules> predicates;
    for (int64_t i = 0; i < plan->num_attributes; ++i) {
      made.push_back(attribute_rows(plan->attributes[i], *batch, threads));
      predicates.push_back({made.back().get(), plan->attributes[i].rules});
    }
    for (int64_t i = 0; i < plan->num_lists; ++i) {
      if (batch->lists[i].open == nullptr) continue;
      made.push_back(list_rows(plan->lists[i], batch->lists[i], batch->requests, threads));
      predicates.push_back({made.back().get(), plan->lists[i].rules});
    }
    for (int64_t i = 0; i < plan->num_intervals; ++i) {
      if (batch->numbers[i] == nullptr) continue;
      made.push_back(
          interval_rows(plan->intervals[i], batch->numbers[i], batch->requests, threads));
      predicates.push_back({made.back().get(), plan->intervals[i].rules});
    }
    for (int64_t i = 0; i < plan->num_others; ++i) {
      predicates.push_back({batch->others[i].masks, plan->others[i]});
      predicates.back().rules.rows = batch->others[i].rows;
    }
    for (int64_t group = 0; group * kGroup < batch->requests; ++group) {
      join_group(*plan, *batch, predicates, group, threads);
    }
  });
}

}  // namespace grace::eligibility
