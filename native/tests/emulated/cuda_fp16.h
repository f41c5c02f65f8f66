// Half precision: the part that the kernels use; see cuda_runtime.h here.
#pragma once

#include <cmath>
#include <cstdint>

struct __half {
  uint16_t bits;
};

inline float __half2float(__half value) {
  const int exponent = value.bits >> 10 & 31, fraction = value.bits & 1023;
  const float sign = (value.bits >> 15) != 0 ? -1.0f : 1.0f;
  if (exponent == 31) return fraction != 0 ? NAN : sign * INFINITY;
  if (exponent == 0) return sign * std::ldexp(static_cast<float>(fraction), -24);
  return sign * std::ldexp(static_cast<float>(1024 + fraction), exponent - 25);
}

inline __half __float2half_rn(float value) {
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const float size = std::fabs(value);
  if (std::isnan(value)) return {0x7fff};
  if (size >= 65520.0f) return {static_cast<uint16_t>(sign | 0x7c00)};
  const int exponent = size < 0x1p-14f ? -14 : std::ilogb(size);
  const int fraction = static_cast<int>(std::nearbyint(std::ldexp(size, 10 - exponent)));
  // A fraction of 1024 or more has the bit that raises the exponent by one.
  return {static_cast<uint16_t>(sign | (((exponent + 14) << 10) + fraction))};
}
