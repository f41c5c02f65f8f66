// The border of grace/features.h: a model's inputs behind a handle, a batch of requests a call.
#include <limits>
#include <memory>

#include "grace/abi.h"
#include "grace/features.h"
#include "grace/wire_batch.h"

namespace {

using grace::features::Inputs;

Inputs& inputs_of(uint64_t handle) { return *reinterpret_cast<Inputs*>(handle); }

template <typename T>
std::vector<T> copied(const T* values, int64_t count) {
  return std::vector<T>(values, values + count);
}

}  // namespace

// Where events are: grace::features::EventLayout. Inputs follow, of each kind in declared order.
GRACE_API int32_t grace_features_open(int64_t sid_length, const int64_t* vocab_sizes,
                                      int64_t places, int64_t ids, int32_t zeros, int32_t packed,
                                      int64_t prefixes, const int32_t* prefix, int64_t suffixes,
                                      const int32_t* suffix, uint64_t* handle) {
  return grace::guarded([&] {
    grace::require(sid_length > 0 && places >= 0 && ids > 0, "features_open: no such layout");
    auto inputs = std::make_unique<Inputs>(grace::features::EventLayout{
        copied(vocab_sizes, sid_length), places, ids, zeros, packed != 0, copied(prefix, prefixes),
        copied(suffix, suffixes)});
    *handle = reinterpret_cast<uint64_t>(inputs.release());
  });
}

GRACE_API int32_t grace_features_add_dense(uint64_t handle, const char* name, int64_t size,
                                           const float* defaults) {
  return grace::guarded([&] { inputs_of(handle).add(name, {copied(defaults, size)}); });
}

GRACE_API int32_t grace_features_add_categorical(uint64_t handle, const char* name,
                                                 int64_t cardinality, int64_t standard,
                                                 int64_t first_row) {
  return grace::guarded([&] {
    inputs_of(handle).add(name, grace::features::Categorical{cardinality, standard, first_row});
  });
}

GRACE_API int32_t grace_features_add_bag(uint64_t handle, const char* name, uint64_t hash_rows,
                                         int64_t first_row, int64_t count,
                                         const int64_t* defaults) {
  return grace::guarded([&] {
    inputs_of(handle).add(name,
                          grace::features::Bag{hash_rows, first_row, copied(defaults, count)});
  });
}

// `token_rows` [sid_length]
GRACE_API int32_t grace_features_add_sequence(uint64_t handle, const char* name, int64_t max_length,
                                              int64_t first_place, int64_t age_row,
                                              int64_t position_row, int64_t sid_length,
                                              const int64_t* token_rows) {
  return grace::guarded([&] {
    inputs_of(handle).add(grace::features::Sequence{name,
                                                    max_length,
                                                    first_place,
                                                    age_row,
                                                    position_row,
                                                    copied(token_rows, sid_length),
                                                    {},
                                                    {}});
  });
}

// Of the sequence added last.
GRACE_API int32_t grace_features_add_side(uint64_t handle, const char* name, int64_t cardinality,
                                          int64_t first_row) {
  return grace::guarded([&] { inputs_of(handle).add_side(name, {cardinality, first_row}); });
}

GRACE_API int32_t grace_features_close(uint64_t handle) {
  return grace::guarded([&] { delete &inputs_of(handle); });
}

// Each message is a grace.v1.RetrieveRequest; grace::wire::Batch says what becomes of faults and of
// unknown names. The other arrays are those of FeatureLookups, of `size` rows, but for the numbers,
// which are as sent.
GRACE_API int32_t grace_features_read(uint64_t handle, int64_t requests, int64_t size,
                                      const char* const* messages, const int64_t* sizes,
                                      float* dense, int32_t* categorical, int32_t* bag_offsets,
                                      int64_t bag_room, int32_t* bag_rows, int32_t* events,
                                      int64_t* faults, int64_t unknown_room, int64_t* unknown,
                                      int64_t* unknown_ends) {
  return grace::guarded([&] {
    grace::require(bag_room <= std::numeric_limits<int32_t>::max(),
                   "features_read: more ids in bags than int32 offsets can number");
    const Inputs& inputs = inputs_of(handle);
    const grace::features::Rows rows{dense, categorical, bag_offsets, bag_rows, bag_room, events};
    bag_offsets[0] = 0;
    grace::wire::read_batch(
        {requests, size, messages, sizes, faults, unknown_room, unknown, unknown_ends},
        [&](grace::wire::Reader message, int64_t row, grace::wire::UnknownNames& names) {
          inputs.read(message, row, rows, names);
        });
  });
}
