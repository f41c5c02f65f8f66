// What a call that makes the masks of eligible nodes reads and writes, on the CPU and on a GPU.
// kernels/eligibility/plan.py and batch.py have the same layouts: all fields have 8 bytes.
#pragma once

#include <limits>

#include "grace/match.h"

namespace grace::eligibility {

constexpr int kGroup = 16;  // requests of a mask: bit i of an uint16 is request i of the group
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// The mask of all requests of a group.
GRACE_HOST_DEVICE uint32_t requests_of_group(int64_t requests, int64_t group) {
  const int64_t left = requests - group * kGroup;
  return left >= kGroup ? 0xffffu : (1u << left) - 1;
}

// The number of a predicate's distinct rows, and the row of each rule.
struct RuleRows {
  const int32_t* ids;
  int64_t id_stride;
  int64_t rows;
};

// Bitmask rows with any strides, in words.
struct AttributeTable {
  RuleRows rules;
  const uint64_t* words;
  int64_t words_per_row;
  int64_t row_stride;
  int64_t word_stride;
};

// The rows that name each value.
struct PostingLists {
  const int64_t* offsets;
  const int32_t* rows;
  int64_t size;
};

// The set rules of a set, after which each group is a row, or the rows of a property.
struct ListTable {
  RuleRows rules;
  const uint8_t* kinds;  // has an include list | has an exclude list << 1
  PostingLists include;
  PostingLists exclude;
  const int32_t* grouped;        // row grouped[i] also needs the rows group_offsets[i] ..
  const int32_t* group_offsets;  // [num_grouped + 1]
  int64_t num_grouped;
  int64_t num_values;
};

constexpr uint8_t kHasInclude = 1, kHasExclude = 2;

struct Interval {
  double low;
  double high;
};

struct IntervalTable {
  RuleRows rules;
  const Interval* rows;
  int64_t missing_passes;
};

// What all batches of an index share. Arrays of structs are in the host's memory, others are not.
struct Plan {
  const AttributeTable* attributes;
  int64_t num_attributes;
  const ListTable* lists;
  int64_t num_lists;
  const IntervalTable* intervals;
  int64_t num_intervals;
  const RuleRows* others;  // predicates without native code; a batch has their masks
  int64_t num_others;
  int64_t rules;
  const int32_t* leaf_offsets;
  const int32_t* leaf_rules;
  const int32_t* node_offsets;
  const int64_t* level_starts;  // [levels + 2], on the host: of the levels, the leaves and the end
  const int64_t* of_warp;       // [levels], on the host: the ranges of a warp, 1 .. 128
  int64_t levels;               // of nodes that are no leaves
};

// The masks of a group: of the inner nodes, and then of the rules and one that nobody passes.
inline int64_t masks_of_group(const Plan& plan) {
  return plan.level_starts[plan.levels] + plan.rules + 1;
}

// Request b names ids[offsets[b]] .. ids[offsets[b + 1]].
struct NamedValues {
  const int32_t* offsets;
  const int32_t* ids;
  int64_t size;
};

// `open` is null if all requests pass all rows.
struct ListQueries {
  const uint8_t* open;  // [requests]: the kinds of rows that pass before any list is walked
  NamedValues included;
  NamedValues excluded;
};

// The mask of the requests whose number is within a row. NaN, no number, is within an open row.
GRACE_HOST_DEVICE uint32_t users_within(const Interval& row, const double* numbers, int64_t count,
                                        bool missing_passes) {
  const bool missing = missing_passes || (row.low == -kInfinity && row.high == kInfinity);
  uint32_t mask = 0;
  for (int64_t i = 0; i < count; ++i) {
    const double number = numbers[i];
    const bool passes = number == number ? row.low <= number && number <= row.high : missing;
    mask |= static_cast<uint32_t>(passes) << i;
  }
  return mask;
}

// Masks[groups, rows] that the host has made.
struct OtherMasks {
  const uint16_t* masks;
  int64_t rows;
};

struct Batch {
  int64_t requests;
  const uint64_t* bitmask;
  const ListQueries* lists;      // of each table of lists of the plan
  const double* const* numbers;  // of each interval table; null: all requests pass all its rows
  const OtherMasks* others;      // of each other predicate of the plan
  uint16_t* eligible;            // [groups, masks_of_group]: the result
  void* scratch;                 // on a GPU; null: the call only writes the bytes that it needs
  int64_t scratch_bytes;
  int64_t steps;  // on a GPU, bit s: run step s; level l is step kLevelSteps + l
};

}  // namespace grace::eligibility
