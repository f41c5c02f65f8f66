// Protocol buffers' wire format. Malformed is what protobuf's own decoder (upb) refuses, too. Both
// drop the same bits of numbers that are too long.
#pragma once

#include <cstring>
#include <string_view>

#include "grace/abi.h"

namespace grace::wire {

struct Malformed {};

inline void require_formed(bool condition) {
  if (!condition) throw Malformed{};
}

// Returns whether bytes are UTF-8 text as Unicode and protobuf define it: no overlong form, no
// surrogate.
inline bool is_utf8(std::string_view text) {
  const auto* at = reinterpret_cast<const uint8_t*>(text.data());
  const uint8_t* end = at + text.size();
  while (at != end) {
    uint64_t eight;
    if (end - at >= 8 && (std::memcpy(&eight, at, 8), (eight & 0x8080808080808080u) == 0)) {
      at += 8;
      continue;
    }
    const uint8_t lead = *at++;
    if (lead < 0x80) continue;
    const int more = lead >= 0xf0 ? 3 : lead >= 0xe0 ? 2 : 1;
    if (lead < 0xc2 || lead > 0xf4 || end - at < more) return false;
    // What the second byte may be keeps out overlong forms, surrogates and what is above U+10FFFF.
    const uint8_t least = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
    const uint8_t most = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
    if (at[0] < least || at[0] > most) return false;
    for (int i = 1; i < more; ++i) {
      if ((at[i] & 0xc0) != 0x80) return false;
    }
    at += more;
  }
  return true;
}

// How a value is written.
enum : uint32_t {
  kVarint = 0,
  kFixed64 = 1,
  kBytes = 2,
  kBeginGroup = 3,
  kEndGroup = 4,
  kFixed32 = 5
};

constexpr uint32_t tag_of(uint32_t field, uint32_t written_as) { return field << 3 | written_as; }

class Reader {
 public:
  Reader() : Reader(nullptr, 0) {}
  Reader(const void* begin, int64_t size)
      : at_(static_cast<const uint8_t*>(begin)), end_(at_ + size) {}

  bool done() const { return at_ == end_; }
  int64_t left() const { return end_ - at_; }
  const uint8_t* at() const { return at_; }
  std::string_view text() const {
    return {reinterpret_cast<const char*>(at_), static_cast<size_t>(left())};
  }

  // At most five bytes.
  uint32_t tag() {
    if (!done() && *at_ >= 0x08 && *at_ < 0x80) return *at_++;
    const uint8_t* begin = at_;
    const uint64_t tag = varint();
    require_formed(at_ - begin <= 5 && tag >= 0x08 && tag <= UINT32_MAX);
    return static_cast<uint32_t>(tag);
  }

  // Takes a tag of one byte, if that comes next.
  bool take_tag(uint32_t tag) {
    const bool comes = !done() && *at_ == tag;
    if (comes) ++at_;
    return comes;
  }

  // At most ten bytes; bits beyond 64 are lost.
  uint64_t varint() {
    require_formed(!done());
    if (*at_ < 0x80) return *at_++;
    uint64_t value = 0;
    for (int shift = 0; shift < 70; shift += 7) {
      require_formed(!done());
      const uint64_t byte = *at_++;
      value |= (byte & 0x7f) << shift;
      if (byte < 0x80) return value;
    }
    throw Malformed{};
  }

  // What follows its size: a text, a message, a packed list. A size has at most five bytes, however
  // small the number in them.
  Reader bytes() {
    const uint8_t* begin = at_;
    const uint64_t size = varint();
    require_formed(at_ - begin <= 5 && size <= static_cast<uint64_t>(left()));
    const Reader inner(at_, static_cast<int64_t>(size));
    at_ += size;
    return inner;
  }

  std::string_view utf8() {
    const std::string_view text = bytes().text();
    require_formed(is_utf8(text));
    return text;
  }

  float fixed32() { return fixed<float>(); }
  double fixed64() { return fixed<double>(); }

  template <uint32_t kWrittenAs>
  auto number() {
    if constexpr (kWrittenAs == kVarint) {
      return varint();
    } else {
      return fixed32();
    }
  }

  // Skips the value of a field that the caller does not read.
  void skip(uint32_t tag) {
    switch (tag & 7) {
      case kVarint:
        varint();
        return;
      case kFixed64:
        return advance(8);
      case kBytes:
        bytes();
        return;
      case kFixed32:
        return advance(4);
      default:  // a group: none of our fields is one
        throw Malformed{};
    }
  }

 private:
  template <typename T>
  T fixed() {
    T value;
    const uint8_t* from = at_;
    advance(sizeof value);
    std::memcpy(&value, from, sizeof value);
    return value;
  }

  void advance(int64_t size) {
    require_formed(left() >= size);
    at_ += size;
  }

  const uint8_t* at_;
  const uint8_t* end_;
};

// Calls take(message, tag) for each field; it reads the field's value, or returns false to have it
// skipped, where another reader checks it.
template <typename Take>
void each_field(Reader message, Take&& take) {
  while (!message.done()) {
    const uint32_t tag = message.tag();
    if (!take(message, tag)) message.skip(tag);
  }
}

// Calls take(bytes) for each text or message that the field `field` has.
template <typename Take>
void each_bytes(Reader message, uint32_t field, Take&& take) {
  each_field(message, [&](Reader& fields, uint32_t tag) {
    const bool is_own = tag == tag_of(field, kBytes);
    if (is_own) take(fields.bytes());
    return is_own;
  });
}

// Calls take(value) for what follows `tag` if that is the repeated field `field`: one number, or a
// packed list of them. False if it is another field.
template <uint32_t kWrittenAs, typename Take>
bool take_numbers(Reader& message, uint32_t tag, uint32_t field, Take&& take) {
  if (tag == tag_of(field, kWrittenAs)) {
    take(message.number<kWrittenAs>());
  } else if (tag == tag_of(field, kBytes)) {
    for (Reader packed = message.bytes(); !packed.done();) take(packed.number<kWrittenAs>());
  } else {
    return false;
  }
  return true;
}

// Returns how many integers a packed list has. It counts the bytes that end an integer, eight bytes
// at a time. If an integer may have more than ten bytes, it reads the list integer by integer.
inline int64_t count_packed(Reader packed) {
  constexpr uint64_t kMore = 0x8080808080808080u;  // set where another byte follows
  const uint8_t* bytes = packed.at();
  const int64_t size = packed.left();
  require_formed(size == 0 || bytes[size - 1] < 0x80);
  int64_t count = 0, run = 0;  // run: the latest bytes that all have a next one
  bool plain = true;
  const auto take = [&](uint64_t eight) {
    const uint64_t ends = ~eight & kMore;
    count += __builtin_popcountll(ends);
    plain &= run + (ends == 0 ? 8 : __builtin_ctzll(ends) / 8) < 9;
    run = ends == 0 ? run + 8 : __builtin_clzll(ends) / 8;
  };
  int64_t i = 0;
  uint64_t eight;
  for (; i + 8 <= size; i += 8) {
    std::memcpy(&eight, bytes + i, 8);
    take(eight);
  }
  if (i < size) {
    eight = kMore;  // bytes beyond the list must not count as ends
    std::memcpy(&eight, bytes + i, size - i);
    take(eight);
  }
  if (plain) return count;
  while (!packed.done()) packed.varint();
  return count;
}

inline int64_t varint_size(uint64_t value) {
  int64_t size = 1;
  for (; value >= 0x80; value >>= 7) ++size;
  return size;
}

// Writes into room that the caller has counted, with kMostSize bytes for each message and list.
class Writer {
 public:
  Writer(uint8_t* begin, int64_t room) : begin_(begin), at_(begin), end_(begin + room) {}

  int64_t written() const { return at_ - begin_; }

  void varint(uint64_t value) {
    require(end_ - at_ >= varint_size(value), kNoRoom);
    for (; value >= 0x80; value >>= 7) *at_++ = static_cast<uint8_t>(value | 0x80);
    *at_++ = static_cast<uint8_t>(value);
  }

  void bytes(const void* from, int64_t size) {
    require(end_ - at_ >= size, kNoRoom);
    if (size > 0) std::memcpy(at_, from, static_cast<size_t>(size));
    at_ += size;
  }

  // Writes a message or a packed list, whose content body() writes.
  template <typename Body>
  void message(uint32_t field, Body&& body) {
    varint(tag_of(field, kBytes));
    uint8_t* const place = at_;
    require(end_ - at_ >= kMostSize, kNoRoom);
    at_ += kMostSize;
    body();
    const int64_t size = at_ - place - kMostSize;
    at_ = place;
    varint(static_cast<uint64_t>(size));
    std::memmove(at_, place + kMostSize, static_cast<size_t>(size));
    at_ += size;
  }

  // As in proto3, zero and empty values are not written.
  void number(uint32_t field, uint64_t value) {
    if (value == 0) return;
    varint(tag_of(field, kVarint));
    varint(value);
  }

  void text(uint32_t field, std::string_view value) {
    if (!value.empty()) packed(field, value.data(), static_cast<int64_t>(value.size()));
  }

  // Writes a packed field of fixed-size numbers, whose bytes are those in memory.
  void packed(uint32_t field, const void* from, int64_t size) {
    if (size == 0) return;
    varint(tag_of(field, kBytes));
    varint(static_cast<uint64_t>(size));
    bytes(from, size);
  }

 private:
  static constexpr int64_t kMostSize = 5;  // bytes of a size
  static constexpr const char* kNoRoom = "wire: no room for the message";

  uint8_t* begin_;
  uint8_t* at_;
  uint8_t* end_;
};

}  // namespace grace::wire
