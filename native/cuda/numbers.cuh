// The types of a model's numbers: every kernel computes in float32 and rounds to the nearest.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

#include "grace/abi.h"
#include "grace/score_keys.h"

namespace grace {

struct Bfloat16 {
  uint16_t bits;
};

__device__ inline float as_float(float value) { return value; }
__device__ inline float as_float(Bfloat16 value) {
  return bits_float(static_cast<uint32_t>(value.bits) << 16);
}
__device__ inline float as_float(__half value) { return __half2float(value); }

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
template <>
__device__ inline __half rounded<__half>(float value) {
  return __float2half_rn(value);
}

// Calls work(Number{}) with the type that NUMBER_KINDS of kernels/checks.py numbers.
template <typename Work>
void with_numbers(int64_t kind, const Work& work) {
  require(kind >= 0 && kind <= 2, "numbers: the kind must be 0, 1 or 2");
  if (kind == 0) {
    work(float{});
  } else if (kind == 1) {
    work(Bfloat16{});
  } else {
    work(__half{});
  }
}

}  // namespace grace
