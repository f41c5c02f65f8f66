// What a call that makes the masks of eligible nodes reads and writes, and the steps it consists
// of. kernels/eligibility/gpu_plan.py and on_gpu.py have the same layouts: all fields have 8 bytes.
#pragma once

#include <cstdint>

#include "grace/abi.h"
#include "launch.cuh"

namespace grace::eligibility {

constexpr int kGroup = 16;  // requests of a mask

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
  const uint8_t* kinds;
  PostingLists include;
  PostingLists exclude;
  int64_t missing_passes_exclude;
};

// What all batches of an index share. Arrays of structs are in the host's memory, others are not.
struct Plan {
  const AttributeTable* attributes;
  int64_t num_attributes;
  const SetLists* sets;
  int64_t num_sets;
  const RuleRows* others;  // predicates without a body in CUDA; a batch has their masks
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

enum Step : int64_t { kAttributeStep, kSetStep, kRuleStep, kLeafStep, kLevelSteps };

struct Batch {
  int64_t requests;
  const uint64_t* bitmask;
  const SetQueries* sets;    // of each set of the plan
  const OtherMasks* others;  // of each other predicate of the plan
  uint16_t* eligible;        // [groups, nodes]: the result
  void* scratch;             // null: the call only writes the bytes that it needs
  int64_t scratch_bytes;
  int64_t steps;  // bit s: run step s; level l is step kLevelSteps + l
};

// One call: its stream, and its memory between steps. Without scratch memory it launches nothing.
class Call {
 public:
  Call(void* stream, const Batch& batch)
      : batch(batch),
        groups((batch.requests + kGroup - 1) / kGroup),
        stream_(stream),
        memory_(static_cast<unsigned char*>(batch.scratch)) {}

  // Returns room for an array. Its bytes are rounded up to whole lines of the cache.
  template <typename T>
  T* room(int64_t count) {
    constexpr int64_t line = 128;
    const int64_t begin = used_;
    used_ += (count * static_cast<int64_t>(sizeof(T)) + line - 1) / line * line;
    if (memory_ == nullptr) return nullptr;
    require(used_ <= batch.scratch_bytes, "eligible_nodes: too little scratch memory");
    return reinterpret_cast<T*>(memory_ + begin);
  }

  template <typename... Parameters, typename... Arguments>
  void launch(int64_t step, const char* what, const LaunchShape& shape,
              void (*kernel)(Parameters...), const Arguments&... arguments) const {
    if (memory_ == nullptr || (batch.steps >> step & 1) == 0) return;
    grace::launch(what, stream_, shape, kernel, arguments...);
  }

  int64_t used() const { return used_; }

  const Batch& batch;
  const int64_t groups;

 private:
  void* stream_;
  unsigned char* memory_;
  int64_t used_ = 0;
};

// Writes the masks[groups, rows] of a table's rows and returns their place.
const uint16_t* attribute_rows(Call& call, const AttributeTable& table);

// Writes the masks[groups, rules] of some sets' rules, and their places.
constexpr int kMostSets = 8;
void set_rows(Call& call, const SetLists* sets, const SetQueries* queries, int64_t count,
              const uint16_t** masks);

}  // namespace grace::eligibility
