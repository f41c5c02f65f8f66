// Small open-addressing tables over ids, emptied between requests while their memory is kept.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace grace {

// The log2 of a table's cells, so that `entries` fill at most half of them.
inline uint32_t table_bits(int64_t entries) {
  uint32_t bits = 6;
  while ((int64_t{1} << bits) < 2 * entries) ++bits;
  return bits;
}

// The top bits of a Fibonacci hash.
inline size_t first_cell(uint64_t key, uint32_t bits) {
  return static_cast<size_t>((key * 0x9E3779B97F4A7C15u) >> (64 - bits));
}

// Numbers keys 0, 1, ... by first use.
class Numbering {
 public:
  // Empties it, with room for `most_keys` distinct keys.
  void reset(int64_t most_keys) {
    bits_ = table_bits(most_keys);
    cells_.assign(size_t{1} << bits_, Cell{0, kFree});
    keys_.clear();
  }

  int32_t number_of(int32_t key) {
    size_t at = first_cell(static_cast<uint32_t>(key), bits_);
    while (cells_[at].number != kFree) {
      if (cells_[at].key == key) return cells_[at].number;
      at = (at + 1) & (cells_.size() - 1);
    }
    cells_[at] = {key, static_cast<int32_t>(keys_.size())};
    keys_.push_back(key);
    return cells_[at].number;
  }

  const std::vector<int32_t>& keys() const { return keys_; }

 private:
  static constexpr int32_t kFree = -1;
  struct Cell {
    int32_t key;
    int32_t number;
  };
  std::vector<Cell> cells_;
  std::vector<int32_t> keys_;
  uint32_t bits_ = 0;
};

// A set of ids. -1 is not an id: it marks a free cell, and inserting it does nothing.
template <typename Id>
class IdSet {
 public:
  // Empties it, with room for `most_ids`.
  void reset(int64_t most_ids) {
    bits_ = table_bits(most_ids);
    cells_.assign(size_t{1} << bits_, kFree);
  }

  // False if it is there already.
  bool insert(Id id) {
    Id& cell = cells_[find(id)];
    if (cell == id) return false;
    cell = id;
    return true;
  }

  bool contains(Id id) const { return cells_[find(id)] == id; }

 private:
  static constexpr Id kFree = -1;

  size_t find(Id id) const {
    size_t at = first_cell(static_cast<uint64_t>(id), bits_);
    while (cells_[at] != id && cells_[at] != kFree) at = (at + 1) & (cells_.size() - 1);
    return at;
  }

  std::vector<Id> cells_;
  uint32_t bits_ = 0;
};

}  // namespace grace
