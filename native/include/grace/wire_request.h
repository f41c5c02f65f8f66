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

// What is left of a map's entries: the last one of each name, in the order of names. An entry that
// belongs to another map's entry is one of that `parent`.
template <typename Entry>
void keep_last_of_each_name(std::vector<Entry>& entries) {
  const auto same = [](const Entry& a, const Entry& b) {
    return a.parent == b.parent && a.name == b.name;
  };
  std::stable_sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return a.parent != b.parent ? a.parent < b.parent : a.name < b.name;
  });
  size_t kept = 0;
  for (size_t i = 0; i < entries.size(); ++i) {
    if (i + 1 < entries.size() && same(entries[i], entries[i + 1])) continue;
    entries[kept++] = entries[i];
  }
  entries.resize(kept);
}

}  // namespace grace::wire

#endif  // GRACE_WIRE_REQUEST_H_
