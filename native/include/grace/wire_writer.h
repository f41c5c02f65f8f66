// Protocol buffers' wire format, written: into room that the caller has counted.
#ifndef GRACE_WIRE_WRITER_H_
#define GRACE_WIRE_WRITER_H_

#include <cstdint>
#include <cstring>
#include <string_view>

#include "grace/abi.h"
#include "grace/wire.h"

namespace grace::wire {

inline int64_t varint_size(uint64_t value) {
  int64_t size = 1;
  for (; value >= 0x80; value >>= 7) ++size;
  return size;
}

// The size of a packed field of `bytes` bytes, whose number is below 16.
inline int64_t packed_size(int64_t bytes) {
  return bytes == 0 ? 0 : 1 + varint_size(static_cast<uint64_t>(bytes)) + bytes;
}

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

  void head(uint32_t field, int64_t size) {
    varint(tag_of(field, kBytes));
    varint(static_cast<uint64_t>(size));
  }

  // As proto3 has it, what is zero or empty is not written.
  void number(uint32_t field, uint64_t value) {
    if (value == 0) return;
    varint(tag_of(field, kVarint));
    varint(value);
  }

  void text(uint32_t field, std::string_view value) {
    if (!value.empty()) packed(field, value.data(), static_cast<int64_t>(value.size()));
  }

  // The numbers of a packed field, as they are in memory.
  void packed(uint32_t field, const void* from, int64_t size) {
    if (size == 0) return;
    head(field, size);
    bytes(from, size);
  }

 private:
  static constexpr const char* kNoRoom = "wire: no room for the message";

  uint8_t* begin_;
  uint8_t* at_;
  uint8_t* end_;
};

// The size of a message of the numbers 1, 2, ...
template <typename Number>
int64_t numbers_size(const Number* values, int fields) {
  int64_t size = 0;
  for (int i = 0; i < fields; ++i) {
    if (values[i] != 0) size += 1 + varint_size(static_cast<uint64_t>(values[i]));
  }
  return size;
}

// A message of numbers as field `field`, written even if all of them are zero.
template <typename Number>
void write_numbers(Writer& out, uint32_t field, const Number* values, int fields) {
  out.head(field, numbers_size(values, fields));
  for (int i = 0; i < fields; ++i)
    out.number(static_cast<uint32_t>(i) + 1, static_cast<uint64_t>(values[i]));
}

}  // namespace grace::wire

#endif  // GRACE_WIRE_WRITER_H_
