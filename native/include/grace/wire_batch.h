// A batch of messages read to rows, each message by itself: one with a fault has the row of an
// empty message, and the others are read all the same.
#ifndef GRACE_WIRE_BATCH_H_
#define GRACE_WIRE_BATCH_H_

#include <cstdint>
#include <string_view>

#include "grace/abi.h"
#include "grace/wire.h"
#include "grace/wire_faults.h"

namespace grace::wire {

constexpr int64_t kUnknownNumbers = 5;

// Names that the schema or the model does not declare: as many as there is room for are listed, and
// all are counted.
class UnknownNames {
 public:
  UnknownNames(int64_t room, int64_t* out) : room_(room), out_(out) {}

  void add(Field kind, std::string_view name, std::string_view side = {}) {
    if (count_ < room_) {
      int64_t numbers[kFaultNumbers];
      write_fault({Wrong::kNothing, kind, 0, 0, name, side}, message_, numbers);
      for (int64_t i = 0; i < kUnknownNumbers; ++i) {
        out_[count_ * kUnknownNumbers + i] = numbers[1 + i];
      }
    }
    ++count_;
  }

  void begin(const char* message) { message_ = message; }
  int64_t count() const { return count_; }
  void forget_after(int64_t count) { count_ = count; }

 private:
  int64_t room_;
  int64_t* out_;
  const char* message_ = nullptr;
  int64_t count_ = 0;
};

// `requests` messages; empty ones fill the batch up to `size` rows:
//   faults        [requests, kFaultNumbers]   all 0 for a message without a fault
//   unknown       [unknown_room, kUnknownNumbers]   where its names end: unknown_ends [requests],
//                 which counts names beyond the room as well
struct Batch {
  int64_t requests;
  int64_t size;
  const char* const* messages;
  const int64_t* sizes;
  int64_t* faults;
  int64_t unknown_room;
  int64_t* unknown;
  int64_t* unknown_ends;
};

// Calls read(message, row, unknown) for every row in order; it may throw Fault or Malformed.
template <typename Read>
void read_batch(const Batch& batch, Read&& read) {
  require(0 <= batch.requests && batch.requests <= batch.size, "a batch has too many requests");
  UnknownNames unknown(batch.unknown_room, batch.unknown);
  UnknownNames dropped(0, nullptr);
  for (int64_t b = 0; b < batch.size; ++b) {
    if (b >= batch.requests) {
      read(Reader(), b, dropped);
      continue;
    }
    int64_t* fault = batch.faults + b * kFaultNumbers;
    const int64_t before = unknown.count();
    const auto refuse = [&](const Fault& found) {
      write_fault(found, batch.messages[b], fault);
      unknown.forget_after(before);
      read(Reader(), b, dropped);
    };
    write_fault({Wrong::kNothing}, batch.messages[b], fault);
    unknown.begin(batch.messages[b]);
    try {
      read(Reader(batch.messages[b], batch.sizes[b]), b, unknown);
    } catch (const Fault& found) {
      refuse(found);
    } catch (const Malformed&) {
      refuse({Wrong::kMalformed});
    }
    batch.unknown_ends[b] = unknown.count();
  }
}

}  // namespace grace::wire

#endif  // GRACE_WIRE_BATCH_H_
