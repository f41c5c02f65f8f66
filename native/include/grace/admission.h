// What admission reads, on the CPU and on a GPU: where a batch's users and an index are.
// kernels/decode/admission.py has the same layout.
#pragma once

#include <cstdint>

namespace grace {

constexpr int kMostSets = 8;  // of a GPU

// The table rows of child entries: entry j has ids[offsets[j]] .. ids[offsets[j + 1]], at least
// one. Without offsets, it has only ids[j].
struct EntryRows {
  const int32_t* ids;
  const int32_t* offsets;
};

struct AdmissionSet {
  EntryRows rows;
  const uint64_t* table;   // [rows, bits / 64]
  const uint8_t* star;     // [rows]
  const int32_t* offsets;  // [requests + 1]: request b's hashes are offsets[b] .. offsets[b + 1]
  const uint64_t* hashes;
  uint64_t* query_tables;  // on a GPU: [requests, bits / 4, 16] of bloom_tables.h, or null
  uint32_t bits;
  uint32_t hashes_per_value;
};

struct Admission {
  const int32_t* node_offsets;  // [internal_nodes + 1]
  const int32_t* tokens;
  int64_t internal_nodes;
  EntryRows bitmask;
  const uint64_t* bitmask_table;  // [rows, words]
  const uint64_t* users;          // [requests, words]
  int32_t* user_words;  // on a GPU: [requests, 1 + words]: how many words have user bits; which
  int64_t words;        // 0 without bitmask matchers, as in modes `cd` and `exact`
  // mode `exact`: [requests / 16 rounded up, eligible_stride], by internal node and then by rule
  const uint16_t* eligible;
  EntryRows leaf_rules;  // of each leaf, which may have none
  int64_t eligible_stride;
  int64_t requests;
  int64_t num_sets;
  AdmissionSet sets[kMostSets];  // of a GPU: the CPU takes any number of them apart
};

}  // namespace grace
