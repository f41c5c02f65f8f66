// The border of grace/users.h: a schema's users behind a handle, a batch of requests a call.
#include <memory>

#include "grace/abi.h"
#include "grace/users.h"
#include "grace/wire_batch.h"

namespace {

using grace::users::Users;

Users& users_of(uint64_t handle) { return *reinterpret_cast<Users*>(handle); }

}  // namespace

// `words` of a bitmask row; attributes and sets follow, sets in the schema's order.
GRACE_API int32_t grace_users_open(int64_t words, uint64_t seed, uint64_t* handle) {
  return grace::guarded([&] {
    grace::require(words > 0, "users_open: a row without words");
    *handle = reinterpret_cast<uint64_t>(std::make_unique<Users>(words, seed).release());
  });
}

// Value i has bit first_bit + i, any other one the bit behind them; none at all has `missing`.
GRACE_API int32_t grace_users_add_attribute(uint64_t handle, const char* name, int64_t first_bit,
                                            int64_t values, const int64_t* offsets,
                                            const uint8_t* utf8, int64_t missing) {
  return grace::guarded([&] {
    const grace::users::Texts texts{values, offsets, reinterpret_cast<const char*>(utf8)};
    grace::users::Attribute attribute{{}, first_bit + values, missing};
    for (int64_t i = 0; i < values; ++i) {
      attribute.bit_of.emplace(std::string(texts[i]), first_bit + i);
    }
    users_of(handle).add(name, std::move(attribute));
  });
}

// The interned values must outlive the handle.
GRACE_API int32_t grace_users_add_set(uint64_t handle, const char* name, int64_t values,
                                      const int64_t* offsets, const uint8_t* utf8,
                                      int64_t most_values) {
  return grace::guarded([&] {
    users_of(handle).add_set(name, {values, offsets, reinterpret_cast<const char*>(utf8)},
                             most_values);
  });
}

GRACE_API int32_t grace_users_close(uint64_t handle) {
  return grace::guarded([&] { delete &users_of(handle); });
}

// Each message is a grace.v1.RetrieveRequest; grace::wire::Batch says what becomes of faults and of
// unknown names. The sets' arrays are those of grace::users::Rows; bitmask is uint64 [size, words].
GRACE_API int32_t grace_users_read(uint64_t handle, int64_t requests, int64_t size,
                                   const char* const* messages, const int64_t* sizes,
                                   uint64_t* bitmask, int32_t* offsets, uint64_t* hashes,
                                   int32_t* value_offsets, int32_t* value_ids, int64_t* faults,
                                   int64_t unknown_room, int64_t* unknown, int64_t* unknown_ends) {
  return grace::guarded([&] {
    const Users& users = users_of(handle);
    const grace::users::Rows rows{size, bitmask, offsets, hashes, value_offsets, value_ids};
    users.begin(rows);
    grace::wire::read_batch(
        {requests, size, messages, sizes, faults, unknown_room, unknown, unknown_ends},
        [&](grace::wire::Reader message, int64_t row, grace::wire::UnknownNames& names) {
          users.read(message, row, rows, names);
        });
  });
}
