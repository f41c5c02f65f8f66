// What the forms of components with values share: the ids of the values that requests name.
#pragma once

#include <algorithm>
#include <string_view>
#include <vector>

#include "grace/form.h"
#include "grace/interner.h"

namespace grace {

// What passes before any list of ids is compared, a bit each: rows that include values, and others.
constexpr uint8_t kOpenInclude = 1, kOpenExclude = 2;

// Sorts, and keeps each value once.
template <typename T>
void keep_distinct(std::vector<T>& values) {
  std::sort(values.begin(), values.end());
  values.erase(std::unique(values.begin(), values.end()), values.end());
}

struct Ids {
  const int32_t* first;
  const int32_t* last;

  const int32_t* begin() const { return first; }
  const int32_t* end() const { return last; }
  bool empty() const { return first == last; }
};

// Request b names ids[offsets[b] .. offsets[b + 1]], ascending.
struct NamedIds {
  int32_t* offsets;
  int32_t* ids;
  int64_t room;  // of the ids of all requests

  Ids of(int64_t request) const { return {ids + offsets[request], ids + offsets[request + 1]}; }

  void require_valid(int64_t requests, int64_t values) const {
    exact::require_offsets(offsets, requests, "exact_match: offsets of value ids descend");
    require(std::all_of(ids + offsets[0], ids + offsets[requests],
                        [&](int32_t id) { return id >= 0 && id < values; }),
            "exact_match: a request's value id is out of range");
  }

  // Writes the ids of a request, after all requests before it.
  void write(int64_t request, const std::vector<int32_t>& named) const {
    if (request == 0) offsets[0] = 0;
    const auto count = static_cast<int64_t>(named.size());
    require(count <= room - offsets[request], "users_read: no room for the values of requests");
    std::copy(named.begin(), named.end(), ids + offsets[request]);
    offsets[request + 1] = offsets[request] + static_cast<int32_t>(count);
  }
};

// The ids of a component's values.
class ValueIds {
 public:
  explicit ValueIds(const users::Texts& values) {
    for (int64_t id = 0; id < values.count; ++id) {
      table_.find_or_add(values[id].data(), static_cast<int64_t>(values[id].size()));
    }
    require(table_.size() == values.count, "users_add: a value is listed twice");
  }

  // Writes the ids of the named values that are known: ascending, each once. Calls unknown(value)
  // for each of the others.
  template <typename Unknown>
  void find(const std::vector<std::string_view>& named, std::vector<int32_t>& ids,
            Unknown&& unknown) const {
    thread_local std::vector<Table::Lookup> lookups;
    lookups.clear();
    ids.resize(named.size());
    for (size_t i = 0; i < named.size(); ++i) {
      lookups.push_back({&table_, named[i].data(), static_cast<int64_t>(named[i].size()), &ids[i]});
    }
    Table::find(lookups);
    for (size_t i = 0; i < named.size(); ++i) {
      if (ids[i] == Table::kAbsent) unknown(named[i]);
    }
    keep_distinct(ids);
    if (!ids.empty() && ids.front() == Table::kAbsent) ids.erase(ids.begin());
  }

 private:
  using Table = Interner<char>;
  Table table_;
};

}  // namespace grace
