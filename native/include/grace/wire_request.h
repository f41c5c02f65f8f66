// The parts that all readers of a grace.v1.RetrieveRequest share: field numbers, undeclared names,
// and batches of messages.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <vector>

#include "grace/abi.h"
#include "grace/parallel.h"
#include "grace/wire.h"
#include "grace/wire_faults.h"
#include "grace/wire_maps.h"

namespace grace::wire {

// Field numbers of RetrieveRequest.
enum : uint32_t {
  kRequestId = 1,
  kModel = 2,
  kSidSpace = 3,
  kUserEntry = 4,
  kFeaturesMessage = 5,
  kMaxAds = 6,
  kProfile = 7,
  kPriority = 8,
  kExcludeAds = 9,
  kIncludeSids = 10,
  kExcludeEntry = 11,
  kAtMostEntry = 12,
  kStrict = 13,
};

constexpr int64_t kUnknownNumbers = 5;

// The names of one message that the schema or the model does not declare.
class UnknownNames {
 public:
  explicit UnknownNames(const char* message) : message_(message) {}

  void add(Field kind, std::string_view name, std::string_view side = {}) {
    int64_t numbers[kFaultNumbers];
    write_fault({Wrong::kNothing, kind, 0, 0, name, side}, message_, numbers);
    numbers_.insert(numbers_.end(), numbers + 1, numbers + 1 + kUnknownNumbers);
  }

  void clear() { numbers_.clear(); }
  int64_t count() const { return static_cast<int64_t>(numbers_.size()) / kUnknownNumbers; }

  // Copies as many as fit.
  void write(int64_t room, int64_t* out) const {
    std::copy_n(numbers_.begin(), std::min(room, count()) * kUnknownNumbers, out);
  }

 private:
  const char* message_;
  std::vector<int64_t> numbers_;
};

// A batch of messages, each of which fills one row. A message with a fault gets the row of an empty
// message, and empty messages fill the rows from `requests` to `size`:
//   faults        [requests, kFaultNumbers]   all 0 for a message without a fault
//   unknown       [unknown_room, kUnknownNumbers]   undeclared names, message by message
//   unknown_ends  [requests]   where each message's names end, with those that did not fit
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

// Calls read(message, row, unknown) for every row, in order if there is one thread; it may throw
// Fault, UnknownField or Malformed.
template <typename Read>
void read_batch(const Batch& batch, Workers& workers, Read&& read) {
  require(0 <= batch.requests && batch.requests <= batch.size, "a batch has too many requests");
  std::vector<UnknownNames> unknown(batch.messages, batch.messages + batch.requests);
  workers.run(batch.size, [&](int64_t b) {
    UnknownNames dropped(nullptr);
    if (b >= batch.requests) {
      read(Reader(), b, dropped);
      return;
    }
    int64_t* fault = batch.faults + b * kFaultNumbers;
    const auto refuse = [&](const Fault& found) {
      write_fault(found, batch.messages[b], fault);
      unknown[b].clear();
      read(Reader(), b, dropped);
    };
    write_fault({Wrong::kNothing}, batch.messages[b], fault);
    try {
      read(Reader(batch.messages[b], batch.sizes[b]), b, unknown[b]);
    } catch (const Fault& found) {
      refuse(found);
    } catch (const UnknownField& found) {
      refuse(unknown_field(found.tag, Field::kWholeMessage));
    } catch (const Malformed&) {
      refuse({Wrong::kMalformed});
    }
  });
  int64_t listed = 0;
  for (int64_t b = 0; b < batch.requests; ++b) {
    const int64_t room = std::max<int64_t>(0, batch.unknown_room - listed);
    unknown[b].write(room, batch.unknown + listed * kUnknownNumbers);
    listed += unknown[b].count();
    batch.unknown_ends[b] = listed;
  }
}

}  // namespace grace::wire
