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

// A set of keys, which are numbered 0, 1, ... as they come.
template <typename Key>
class Numbering {
 public:
  // Empties it, with room for `most_keys` distinct keys.
  void reset(int64_t most_keys) {
    bits_ = table_bits(most_keys);
    cells_.assign(size_t{1} << bits_, Cell{0, kFree});
    keys_.clear();
  }

  // Adds a key if it is new.
  int32_t number_of(Key key) {
    Cell& cell = cells_[find(key)];
    if (cell.number == kFree) {
      cell = {key, static_cast<int32_t>(keys_.size())};
      keys_.push_back(key);
    }
    return cell.number;
  }

  bool contains(Key key) const { return cells_[find(key)].number != kFree; }
  const std::vector<Key>& keys() const { return keys_; }

 private:
  static constexpr int32_t kFree = -1;
  struct Cell {
    Key key;
    int32_t number;
  };

  size_t find(Key key) const {
    size_t at = first_cell(static_cast<uint64_t>(key), bits_);
    while (cells_[at].number != kFree && cells_[at].key != key) at = (at + 1) & (cells_.size() - 1);
    return at;
  }

  std::vector<Cell> cells_;
  std::vector<Key> keys_;
  uint32_t bits_ = 0;
};

}  // namespace grace
