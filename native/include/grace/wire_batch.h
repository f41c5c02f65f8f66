// A batch of messages to rows, each message for itself: what is not plainly right is left to
// Python.
#ifndef GRACE_WIRE_BATCH_H_
#define GRACE_WIRE_BATCH_H_

#include <algorithm>
#include <cstdint>
#include <string>

#include "grace/wire.h"

namespace grace::wire {

// Of `requests` messages, empty ones filling the batch up to `size` rows:
//   understood    [requests]   0: not plainly right, and its row is an empty message's
//   unknown       its unknown names end at unknown_ends [requests]; a message whose names have no
//                 room left there is not understood
struct Batch {
  int64_t requests;
  int64_t size;
  const char* const* messages;
  const int64_t* sizes;
  uint8_t* understood;
  int64_t unknown_room;
  char* unknown;
  int64_t* unknown_ends;
};

// Calls read(message, row, names) for every row in order; it appends unknown names, or throws
// NotPlain.
template <typename Read>
void read_batch(const Batch& batch, Read&& read) {
  std::string names;
  std::string nobody;
  for (int64_t b = 0; b < batch.size; ++b) {
    bool understood = false;
    const size_t before = names.size();
    if (b < batch.requests) {
      try {
        read(Reader(batch.messages[b], batch.sizes[b]), b, names);
        require_plain(static_cast<int64_t>(names.size()) <= batch.unknown_room);
        understood = true;
      } catch (const NotPlain&) {
        names.resize(before);
      }
      batch.understood[b] = understood;
      batch.unknown_ends[b] = static_cast<int64_t>(names.size());
    }
    if (!understood) read(Reader(), b, nobody);
  }
  std::copy(names.begin(), names.end(), batch.unknown);
}

}  // namespace grace::wire

#endif  // GRACE_WIRE_BATCH_H_
