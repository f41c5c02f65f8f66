// The steps of a call that makes the masks of eligible nodes, and its memory between them.
#pragma once

#include "grace/abi.h"
#include "grace/eligibility.h"
#include "launch.cuh"

namespace grace::eligibility {

enum Step : int64_t { kNumberStep, kListStep, kRuleStep, kLevelSteps };

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

// Write the masks[groups, rows] of some tables' rows, and their places.
constexpr int kMostTables = 8;
void list_rows(Call& call, const ListTable* tables, const ListQueries* queries, int64_t count,
               const uint16_t** masks);
void interval_rows(Call& call, const IntervalTable* tables, const double* const* numbers,
                   int64_t count, const uint16_t** masks);

}  // namespace grace::eligibility
