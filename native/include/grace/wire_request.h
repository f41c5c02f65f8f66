// A grace.v1.RetrieveRequest as it comes from the network: its bytes, checked once and for all, and
// compared with the server's limits.
#ifndef GRACE_WIRE_REQUEST_H_
#define GRACE_WIRE_REQUEST_H_

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <vector>

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
};

// The configuration's `limits`, and how many tokens an event has.
struct Limits {
  int64_t request_id_bytes;
  int64_t value_bytes;  // of names, too
  int64_t names;
  int64_t values_per_name;
  int64_t user_values;
  int64_t events;
  int64_t exclude_ads;
  int64_t max_ads;
  int64_t sid_length;
};

// All fields but the user and the features, which later readers find in the message.
struct RequestHead {
  std::string_view request_id, model, sid_space, profile, priority;
  uint32_t max_ads = 0;
  bool include_sids = false;
  int64_t exclude_ads = 0;  // how many
};

// Reads and checks the whole message. Throws Malformed before anything else, then the first Fault
// in this order: texts, exclude_ads, user, features, max_ads; maps are checked in the order of
// their names. `head` has what was read, whatever is thrown but for Malformed.
void read_request(Reader message, const Limits& limits, RequestHead& head);

// Names have other hashes in every process: no caller can choose names that collide.
uint64_t seed_of_this_process();

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
      entries_[static_cast<size_t>(cell)] = entry;
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
      const Entry& there = entries_[static_cast<size_t>(cells_[at])];
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

}  // namespace grace::wire

#endif  // GRACE_WIRE_REQUEST_H_
