// What a call that makes the masks of eligible nodes reads and writes, on the CPU and on a GPU.
// kernels/eligibility/plan.py and batch.py have the same layouts: all fields have 8 bytes.
#pragma once

#include <cstdint>

#include "grace/match.h"

namespace grace::eligibility {

constexpr int kGroup = 16;  // requests of a mask: bit i of an uint16 is request i of the group

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

// The set rules that name each value.
struct PostingLists {
  const int64_t* offsets;
  const int32_t* rules;
  int64_t size;
};

struct SetLists {
  RuleRows rules;
  const uint8_t* kinds;  // has an include list | has an exclude list << 1
  PostingLists include;
  PostingLists exclude;
  int64_t missing_passes_exclude;
  int64_t num_values;
};

constexpr uint8_t kHasInclude = 1, kHasExclude = 2;

// What all batches of an index share. Arrays of structs are in the host's memory, others are not.
struct Plan {
  const AttributeTable* attributes;
  int64_t num_attributes;
  const SetLists* sets;
  int64_t num_sets;
  const RuleRows* others;  // predicates without native code; a batch has their masks
  int64_t num_others;
  int64_t rules;
  const int32_t* leaf_offsets;
  const int32_t* leaf_rules;
  const int32_t* node_offsets;
  const int64_t* level_starts;  // [levels + 2], on the host: of the levels, the leaves and the end
  const int64_t* of_warp;       // [levels + 1], on the host: the ranges of a warp, 1 .. 128
  int64_t levels;               // of nodes that are no leaves
};

struct SetQueries {
  const int32_t* offsets;        // [requests + 1]: whether a request has any value
  const int32_t* value_offsets;  // [requests + 1]
  const int32_t* values;
  int64_t num_values;
};

// Masks[groups, rows] that the host has made.
struct OtherMasks {
  const uint16_t* masks;
  int64_t rows;
};

struct Batch {
  int64_t requests;
  const uint64_t* bitmask;
  const SetQueries* sets;    // of each set of the plan
  const OtherMasks* others;  // of each other predicate of the plan
  uint16_t* eligible;        // [groups, nodes]: the result
  void* scratch;             // on a GPU; null: the call only writes the bytes that it needs
  int64_t scratch_bytes;
  int64_t steps;  // on a GPU, bit s: run step s; level l is step kLevelSteps + l
};

}  // namespace grace::eligibility
