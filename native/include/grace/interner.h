// Deduplication: equal spans of words get one id, ids count up by first use.
#pragma once

#include <algorithm>
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
  if (i < count) {
    uint64_t rest = 0;
    for (; i < count; ++i) rest = rest << 8 ^ static_cast<uint64_t>(words[i]);
    take(rest);
  }
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

  struct Lookup {
    const Interner* table;
    const Word* span;
    int64_t length;
    int32_t* id;  // where the result goes
    uint32_t hash = 0;
  };

  // Looks up spans in tables that are larger than the caches: what a lookup reads next is on its
  // way from memory while the others are looked up.
  static void find(std::vector<Lookup>& lookups) {
    for (Lookup& each : lookups) {
      each.hash = hash_span(each.span, each.length);
      __builtin_prefetch(&each.table->slot(each.hash));
    }
    for (const Lookup& each : lookups) {
      __builtin_prefetch(&each.table->starts_[each.table->first_id(each.hash)]);
    }
    for (const Lookup& each : lookups) {
      __builtin_prefetch(each.table->span(each.table->first_id(each.hash)));
    }
    for (const auto& [table, span, length, id, hash] : lookups) {
      *id = table->slots_[table->slot_of(span, length, hash)].id;
    }
  }

  int32_t find_or_add(const Word* span, int64_t length) {
    const uint32_t hash = hash_span(span, length);
    size_t slot = slot_of(span, length, hash);
    if (slots_[slot].id != kAbsent) return slots_[slot].id;
    if (2 * starts_.size() > slots_.size()) {
      grow();
      slot = slot_of(span, length, hash);
    }
    if (size() == std::numeric_limits<int32_t>::max() - 1) {
      throw std::length_error(
          "more than 2^31 - 2 distinct rows; split the catalogue into several snapshots");
    }
    words_.insert(words_.end(), span, span + length);
    slots_[slot] = {hash, size()};
    starts_.push_back(static_cast<int64_t>(words_.size()));
    return slots_[slot].id;
  }

 private:
  static constexpr size_t kFirstSlots = 64;  // a power of two

  struct Slot {
    uint32_t hash = 0;
    int32_t id = kAbsent;
  };

  const Slot& slot(uint32_t hash) const { return slots_[hash & (slots_.size() - 1)]; }

  // The first span to compare with, or any if there is none.
  int32_t first_id(uint32_t hash) const { return std::max(slot(hash).id, 0); }

  // The slot that holds this span, or the free one where it belongs.
  size_t slot_of(const Word* span, int64_t length, uint32_t hash) const {
    const size_t mask = slots_.size() - 1;
    size_t slot = hash & mask;
    for (; slots_[slot].id != kAbsent; slot = (slot + 1) & mask) {
      const auto [own, id] = slots_[slot];
      if (own == hash && this->length(id) == length &&
          (length == 0 || std::memcmp(this->span(id), span, length * sizeof(Word)) == 0)) {
        break;
      }
    }
    return slot;
  }

  void grow() {
    std::vector<Slot> grown(slots_.size() * 2);
    const size_t mask = grown.size() - 1;
    for (const Slot& each : slots_) {
      if (each.id == kAbsent) continue;
      size_t slot = each.hash & mask;
      while (grown[slot].id != kAbsent) slot = (slot + 1) & mask;
      grown[slot] = each;
    }
    slots_.swap(grown);
  }

  std::vector<Slot> slots_;  // at most half full
  std::vector<int64_t> starts_;
  std::vector<Word> words_;
};

}  // namespace grace
