// Protocol buffers' wire format, as far as our own messages need it. A reader takes what every
// writer writes and throws NotPlain at the rest, malformed or merely odd: the caller then lets
// protobuf itself say which. What is taken here, protobuf reads the same.
#ifndef GRACE_WIRE_H_
#define GRACE_WIRE_H_

#include <cstdint>
#include <cstring>
#include <string_view>

#include "grace/utf8.h"

namespace grace::wire {

struct NotPlain {};

inline void require_plain(bool condition) {
  if (!condition) throw NotPlain{};
}

// How a value is written. A tag is one byte here: fields have numbers below 16.
enum : uint8_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

constexpr uint8_t tag_of(int field, int written_as) {
  return static_cast<uint8_t>(field << 3 | written_as);
}

class Reader {
 public:
  Reader() : at_(nullptr), end_(nullptr) {}
  Reader(const void* begin, int64_t size)
      : at_(static_cast<const uint8_t*>(begin)), end_(at_ + size) {}

  bool done() const { return at_ == end_; }
  int64_t left() const { return end_ - at_; }
  const uint8_t* at() const { return at_; }

  // One byte: protobuf takes five, but nobody writes more than a tag needs.
  uint8_t tag() {
    require_plain(!done() && *at_ >= 0x08 && *at_ < 0x80);
    return *at_++;
  }

  // At most ten bytes, of which the tenth has one bit left to give.
  uint64_t varint() {
    require_plain(!done());
    if (*at_ < 0x80) return *at_++;
    uint64_t value = 0;
    for (int shift = 0; shift < 70; shift += 7) {
      require_plain(!done());
      const uint64_t byte = *at_++;
      value |= (byte & 0x7f) << shift;
      if (byte < 0x80) {
        require_plain(shift < 63 || byte < 2);
        return value;
      }
    }
    throw NotPlain{};
  }

  // What follows its size: a text, a message, a packed list. Sizes have at most five bytes, however
  // small the number in them: protobuf refuses longer ones.
  Reader bytes() {
    const uint8_t* begin = at_;
    const uint64_t size = varint();
    require_plain(at_ - begin <= 5 && size <= static_cast<uint64_t>(left()));
    const Reader inner(at_, static_cast<int64_t>(size));
    at_ += size;
    return inner;
  }

  float fixed32() {
    float value;
    require_plain(left() >= static_cast<int64_t>(sizeof value));
    std::memcpy(&value, at_, sizeof value);
    at_ += sizeof value;
    return value;
  }

  void skip(uint8_t tag) {
    switch (tag & 7) {
      case kVarint:
        varint();
        return;
      case kBytes:
        bytes();
        return;
      case kFixed32:
        return advance(4);
      case kFixed64:
        return advance(8);
      default:
        throw NotPlain{};
    }
  }

  std::string_view text() const {
    return {reinterpret_cast<const char*>(at_), static_cast<size_t>(left())};
  }

 private:
  void advance(int64_t size) {
    require_plain(left() >= size);
    at_ += size;
  }

  const uint8_t* at_;
  const uint8_t* end_;
};

struct MapEntry {
  std::string_view name;
  Reader value;
};

// An entry of a map from texts to messages. Neither may come twice: a second one would be merged.
inline MapEntry map_entry(Reader entry) {
  MapEntry read;
  bool named = false;
  bool valued = false;
  while (!entry.done()) {
    const uint8_t tag = entry.tag();
    if (tag == tag_of(1, kBytes) && !named) {
      named = true;
      read.name = entry.bytes().text();
    } else if (tag == tag_of(2, kBytes) && !valued) {
      valued = true;
      read.value = entry.bytes();
    } else {
      throw NotPlain{};
    }
  }
  return read;
}

// Of a name that nobody knows: Python is given such names side by side, with a zero byte between
// them, and decodes those of a batch together.
inline void require_listable(std::string_view name) {
  require_plain(name.find('\0') == std::string_view::npos && is_utf8(name));
}

// Calls take(value) for what stands behind `tag` if that is the repeated integer field `field`,
// one value or a packed list of them. False if it is another field.
template <typename Take>
bool take_integers(Reader& message, uint8_t tag, int field, Take&& take) {
  if (tag == tag_of(field, kVarint)) {
    take(message.varint());
  } else if (tag == tag_of(field, kBytes)) {
    for (Reader packed = message.bytes(); !packed.done();) take(packed.varint());
  } else {
    return false;
  }
  return true;
}

// The same of a repeated float.
template <typename Take>
bool take_floats(Reader& message, uint8_t tag, int field, Take&& take) {
  if (tag == tag_of(field, kFixed32)) {
    take(message.fixed32());
  } else if (tag == tag_of(field, kBytes)) {
    for (Reader packed = message.bytes(); !packed.done();) take(packed.fixed32());
  } else {
    return false;
  }
  return true;
}

// Of the next eight bytes, a bit for each that another one follows in the same varint.
inline uint64_t continued(const uint8_t* bytes) {
  uint64_t eight;
  std::memcpy(&eight, bytes, sizeof eight);
  return ((eight & 0x8080808080808080u) >> 7) * 0x0102040810204080u >> 56;
}

// Whether nine bits in a row are set.
inline bool any_nine(uint64_t bits) {
  bits &= bits >> 1;
  bits &= bits >> 2;
  return (bits & bits >> 4 & bits >> 5) != 0;
}

// How many integers a packed list has. Their values do not matter, only where they end: so 56 bytes
// are looked at together, with the eight before them, which may be the same integer's.
inline int64_t count_packed(Reader packed) {
  const uint8_t* bytes = packed.at();
  const int64_t size = packed.left();
  require_plain(size == 0 || bytes[size - 1] < 0x80);
  int64_t more = 0;  // bytes that another one follows
  bool plain = true;
  uint64_t window = 0;
  int64_t i = 0;
  for (; i + 56 <= size; i += 56) {
    window >>= 56;
    for (int eight = 0; eight < 7; ++eight) {
      window |= continued(bytes + i + 8 * eight) << (8 + 8 * eight);
    }
    more += __builtin_popcountll(window >> 8);
    plain &= !any_nine(window);
  }
  int64_t run = 0;
  for (int64_t j = i; j > 0 && bytes[j - 1] >= 0x80 && run < 9; --j) ++run;
  for (; i < size; ++i) {
    const bool continues = bytes[i] >= 0x80;
    more += continues;
    run = continues ? run + 1 : 0;
    plain &= run < 9;
  }
  if (plain) return size - more;
  while (!packed.done()) packed.varint();
  return size - more;
}

}  // namespace grace::wire

#endif  // GRACE_WIRE_H_
