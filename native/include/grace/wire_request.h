// The parts that all readers of a grace.v1.RetrieveRequest share: field numbers, the last entry of
// each name in a map, undeclared names, and batches of messages.
#pragma once

#include <algorithm>
#include <cstdint>
#include <random>
#include <string_view>
#include <vector>

#include "grace/abi.h"
#include "grace/parallel.h"
#include "grace/wire.h"
#include "grace/wire_faults.h"
#include "grace/xxh3.h"

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
};

// Names have other hashes in every process: no caller can choose names that collide.
inline uint64_t seed_of_this_process() {
  static const uint64_t seed = std::random_device{}() * uint64_t{0x9E3779B97F4A7C15};
  return seed;
}

// The entries of a map: of one name, only the last one counts. An entry that belongs to an entry of
// another map has that `parent`.
template <typename Entry>
class LastOfEachName {
 public:
  void put(const Entry& entry) {
    if (2 * (entries_.size() + 1) > cells_.size()) grow();
    int32_t& cell = cells_[cell_of(entry)];
    if (cell == kFree) {
      cell = static_cast<int32_t>(entries_.size());
      entries_.push_back(entry);
    } else {
      entries_[cell] = entry;
    }
  }

  void clear() {
    cells_.clear();
    entries_.clear();
  }

  size_t size() const { return entries_.size(); }

  // By parent and name. Nothing may be put after it.
  const std::vector<Entry>& sorted() {
    std::sort(entries_.begin(), entries_.end(), [](const Entry& a, const Entry& b) {
      return a.parent != b.parent ? a.parent < b.parent : a.name < b.name;
    });
    return entries_;
  }

  // In any order.
  const std::vector<Entry>& entries() const { return entries_; }

 private:
  static constexpr int32_t kFree = -1;

  size_t cell_of(const Entry& entry) const {
    const size_t mask = cells_.size() - 1;
    size_t at = hash_text(entry.name, seed_of_this_process() + entry.parent) & mask;
    while (cells_[at] != kFree) {
      const Entry& there = entries_[cells_[at]];
      if (there.parent == entry.parent && there.name == entry.name) break;
      at = (at + 1) & mask;
    }
    return at;
  }

  void grow() {
    cells_.assign(std::max<size_t>(16, 2 * cells_.size()), kFree);
    for (size_t i = 0; i < entries_.size(); ++i) {
      cells_[cell_of(entries_[i])] = static_cast<int32_t>(i);
    }
  }

  std::vector<int32_t> cells_;  // a power of two of them, at most half of them taken
  std::vector<Entry> entries_;
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
