// Deduplication: equal spans of words get one id, ids count up by first use.
#pragma once

#include <cstdint>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <vector>

namespace grace {

inline uint64_t mix(uint64_t a, uint64_t b) {
  const unsigned __int128 product = static_cast<unsigned __int128>(a) * b;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

template <typename Word>
uint32_t hash_span(const Word* words, int64_t count) {
  uint64_t hash = 0x9e3779b97f4a7c15u ^ static_cast<uint64_t>(count);
  const auto take = [&](uint64_t word) {
    hash = mix(hash ^ word, 0xd6e8feb86659fd93u) + 0xa0761d6478bd642fu;
  };
  constexpr int64_t at_once = 8 / sizeof(Word);
  int64_t i = 0;
  for (; i + at_once <= count; i += at_once) {
    uint64_t word;
    std::memcpy(&word, words + i, sizeof(word));
    take(word);
  }
  if (i < count) take(static_cast<uint64_t>(words[i]));
  return static_cast<uint32_t>(hash ^ (hash >> 32));
}

// Spans of any length. Reading (`find`) is safe from many threads while none adds.
template <typename Word>
class Interner {
 public:
  static constexpr int32_t kAbsent = -1;

  Interner() : starts_(1, 0) { slots_.resize(kFirstSlots); }

  int32_t size() const { return static_cast<int32_t>(starts_.size() - 1); }
  const Word* words() const { return words_.data(); }
  int64_t num_words() const { return static_cast<int64_t>(words_.size()); }
  const Word* span(int32_t id) const { return words_.data() + starts_[id]; }
  int64_t length(int32_t id) const { return starts_[id + 1] - starts_[id]; }

  int32_t find(const Word* span, int64_t length) const {
    return slots_[slot_of(span, length, hash_span(span, length))] - 1;
  }

  int32_t find_or_add(const Word* span, int64_t length) {
    const uint32_t hash = hash_span(span, length);
    size_t slot = slot_of(span, length, hash);
    if (slots_[slot] != 0) return slots_[slot] - 1;
    if (2 * (hashes_.size() + 1) > slots_.size()) {
      grow();
      slot = slot_of(span, length, hash);
    }
    if (hashes_.size() >= static_cast<size_t>(std::numeric_limits<int32_t>::max() - 1)) {
      throw std::length_error(
          "more than 2^31 - 2 distinct rows; split the catalogue into several snapshots");
    }
    words_.insert(words_.end(), span, span + length);
    starts_.push_back(static_cast<int64_t>(words_.size()));
    hashes_.push_back(hash);
    slots_[slot] = static_cast<int32_t>(hashes_.size());
    return slots_[slot] - 1;
  }

 private:
  static constexpr size_t kFirstSlots = 64;  // a power of two

  // The slot that holds this span, or the free one where it belongs.
  size_t slot_of(const Word* span, int64_t length, uint32_t hash) const {
    const size_t mask = slots_.size() - 1;
    size_t slot = hash & mask;
    while (slots_[slot] != 0) {
      const int32_t id = slots_[slot] - 1;
      if (hashes_[id] == hash && this->length(id) == length &&
          (length == 0 || std::memcmp(this->span(id), span, length * sizeof(Word)) == 0)) {
        break;
      }
      slot = (slot + 1) & mask;
    }
    return slot;
  }

  void grow() {
    slots_.assign(slots_.size() * 2, 0);
    const size_t mask = slots_.size() - 1;
    for (size_t id = 0; id < hashes_.size(); ++id) {
      size_t slot = hashes_[id] & mask;
      while (slots_[slot] != 0) slot = (slot + 1) & mask;
      slots_[slot] = static_cast<int32_t>(id + 1);
    }
  }

  std::vector<int32_t> slots_;  // id + 1, 0 when free; at most half full
  std::vector<uint32_t> hashes_;
  std::vector<int64_t> starts_;
  std::vector<Word> words_;
};

}  // namespace grace
