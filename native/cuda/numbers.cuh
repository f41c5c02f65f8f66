// The types of a model's numbers: every kernel computes in float32 and rounds to the nearest.
#pragma once

#include <cstring>

#include "grace/abi.h"

namespace grace {

struct Bfloat16 {
  uint16_t bits;
};

__device__ inline uint32_t float_bits(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

__device__ inline float bits_float(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

__device__ inline float as_float(float value) { return value; }
__device__ inline float as_float(Bfloat16 value) {
  return bits_float(static_cast<uint32_t>(value.bits) << 16);
}

template <typename Number>
__device__ Number rounded(float value);
template <>
__device__ inline float rounded<float>(float value) {
  return value;
}
template <>
__device__ inline Bfloat16 rounded<Bfloat16>(float value) {
  const uint32_t bits = float_bits(value);
  if (value != value) return {0x7fc0};
  return {static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}

// Calls work(Number{}) with the type that NUMBER_KINDS of kernels/checks.py numbers.
template <typename Work>
void with_numbers(int64_t kind, const Work& work) {
  require(kind == 0 || kind == 1, "numbers: the kind must be 0 or 1");
  if (kind == 0) {
    work(float{});
  } else {
    work(Bfloat16{});
  }
}

}  // namespace grace
