// Maps from texts to messages, shared by the readers of several messages.
#pragma once

#include <algorithm>
#include <cstdint>
#include <random>
#include <string_view>
#include <vector>

#include "grace/wire.h"
#include "grace/xxh3.h"

namespace grace::wire {

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

// An entry of a map from texts to grace.v1.Ids.
struct IdsEntry {
  std::string_view name;
  Reader entry;
  size_t parent = 0;
  int64_t ids = 0;  // the number of them
};

inline IdsEntry read_ids_entry(Reader entry) {
  IdsEntry read;
  read.entry = entry;
  const auto count = [&](Reader& ids, uint32_t tag) {
    return count_integers(ids, tag, 1, read.ids);
  };
  read_entry(entry, read.name, [&](Reader part) { every_field(part, count); });
  return read;
}

// Writes begin and size of a name in `message`, and a number that belongs to it.
inline void write_named(std::string_view name, int64_t number, const char* message, int64_t*& out) {
  *out++ = name.empty() ? 0 : name.data() - message;
  *out++ = static_cast<int64_t>(name.size());
  *out++ = number;
}

// Copies the ids of all entries, in the order of their names, and writes each name with its number
// of ids.
inline void copy_ids(LastOfEachName<IdsEntry>& map, const char* message, int64_t*& names,
                     int64_t*& ids) {
  const auto take = [&](uint64_t id) { *ids++ = static_cast<int64_t>(id); };
  for (const IdsEntry& entry : map.sorted()) {
    write_named(entry.name, entry.ids, message, names);
    std::string_view name;
    read_entry(entry.entry, name, [&](Reader part) {
      every_field(part,
                  [&](Reader& list, uint32_t tag) { return take_integers(list, tag, 1, take); });
    });
  }
}

}  // namespace grace::wire
