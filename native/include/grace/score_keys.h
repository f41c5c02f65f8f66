// Scores as integers that sort as selection ranks candidates: by score, descending, then by place.
// Nothing of torch or the CUDA runtime.
#pragma once

#include <cstring>

#include "grace/match.h"

namespace grace {

GRACE_HOST_DEVICE uint32_t float_bits(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

GRACE_HOST_DEVICE float bits_float(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

// Ascending where scores descend; both zeros are one score. Not for NaN.
GRACE_HOST_DEVICE uint32_t score_key(float score) {
  const uint32_t bits = float_bits(score + 0.0f);
  return (bits >> 31) != 0 ? bits : 0x7fffffffu - bits;
}

GRACE_HOST_DEVICE float score_of_key(uint32_t key) {
  return bits_float((key >> 31) != 0 ? key : 0x7fffffffu - key);
}

// Keys of the scores from -1 down to -256, counted from the first one; scores outside share the
// first or the last key. A k-th best log-probability is in this range, where the bits resolve more
// than the same number of bits of the whole key.
constexpr int kWindowBits = 26;
constexpr uint32_t kWindowKeys = 1u << kWindowBits;
constexpr uint32_t kFirstWindowKey = 0xbf800000u;

GRACE_HOST_DEVICE uint32_t window_of_key(uint32_t key) {
  if (key < kFirstWindowKey) return 0;
  const uint32_t place = key - kFirstWindowKey;
  return place < kWindowKeys ? place : kWindowKeys - 1;
}

// The last key of a place in the window.
GRACE_HOST_DEVICE uint32_t key_of_window(uint32_t place) {
  return place < kWindowKeys - 1 ? kFirstWindowKey + place : 0xffffffffu;
}

// A candidate of one request: its beam, then its place among the beam's.
GRACE_HOST_DEVICE uint32_t candidate_place(uint32_t beam, uint32_t place) {
  return beam << 16 | place;
}

GRACE_HOST_DEVICE uint64_t candidate_key(uint32_t score_key, uint32_t candidate_place) {
  return static_cast<uint64_t>(score_key) << 32 | candidate_place;
}

}  // namespace grace
