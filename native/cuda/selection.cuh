// The tensors that selection reads and writes, and the keys by which it ranks candidates: by score,
// descending, then by place. kernels/decode/select_beams_cuda.py has the same layout.
#pragma once

#include "launch.cuh"
#include "numbers.cuh"

namespace grace {

// Rows are requests * beams, request-major.
struct Selection {
  const void* logits;      // [rows, columns]
  const float* row_scale;  // [rows], or null
  const float* log_sums;   // [rows]: normalisers, or null to use those of the columns
  const float* scores;     // [rows]
  const int32_t* offsets;  // [rows + 1]
  const int32_t* counts;   // [rows], or null if all places between two offsets are candidates
  const int32_t* tokens;
  const int32_t* nodes;
  float2* normalisers;    // [rows], work space: the largest logit, and the log of the relative sum
  float* group_best;      // [rows, 32], work space
  uint64_t* keys;         // [requests, 2, capacity], work space, or null to use a block's memory
  int32_t* kept_parents;  // [requests, k], like the next three
  int32_t* kept_tokens;
  int32_t* kept_nodes;
  float* kept_scores;
  bool* corrupt;  // [requests]
  int64_t requests;
  int64_t beams;
  int64_t columns;
  int64_t logit_kind;  // numbers.cuh
  int64_t k;
  int64_t capacity;  // keys that are ranked exactly, at least k
  int64_t ordered;
};

// A beam row with candidates, and the terms of their scores.
template <typename Logit>
struct ScoredRow {
  const Logit* logits;
  const int32_t* tokens;
  float scale, highest, log_sum, score;

  __device__ ScoredRow(const Selection& from, int64_t row)
      : logits(static_cast<const Logit*>(from.logits) + row * from.columns),
        tokens(from.tokens + from.offsets[row]),
        scale(from.row_scale == nullptr ? 1.0f : from.row_scale[row]),
        highest(0),
        log_sum(0),
        score(from.scores[row]) {}

  __device__ float logit(int64_t column) const {
    return __fmul_rn(as_float(logits[column]), scale);
  }

  // Reads logits column .. column + 3, or -inf if they are not there; the address is aligned to
  // four.
  __device__ void four_logits(int64_t column, bool there, float* found) const {
    struct alignas(4 * sizeof(Logit)) Four {
      Logit values[4];
    };
    if (!there) {
      for (int i = 0; i < 4; ++i) found[i] = -INFINITY;
      return;
    }
    const Four four = *reinterpret_cast<const Four*>(logits + column);
    for (int i = 0; i < 4; ++i) found[i] = __fmul_rn(as_float(four.values[i]), scale);
  }

  // It is computed wherever it is needed, with the same rounding each time.
  __device__ float total_of(int32_t token) const {
    const float above = __fsub_rn(logit(token), highest);
    return __fadd_rn(__fsub_rn(above, log_sum), score);
  }

  // Returns the totals of the candidates place, place + stride, .. below `count`, and -inf beyond.
  template <int kAtOnce>
  __device__ void totals(int32_t place, int32_t stride, int32_t count,
                         float (&found)[kAtOnce]) const {
    int32_t own[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      own[i] = place + i * stride < count ? tokens[place + i * stride] : 0;
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      found[i] = place + i * stride < count ? total_of(own[i]) : -INFINITY;
    }
  }
};

// A score as an integer that ascends where scores descend; both zeros are one score. Not for NaN.
__device__ inline uint32_t score_key(float score) {
  const uint32_t bits = float_bits(score + 0.0f);
  return (bits >> 31) != 0 ? bits : 0x7fffffffu - bits;
}

__device__ inline float score_of_key(uint32_t key) {
  return bits_float((key >> 31) != 0 ? key : 0x7fffffffu - key);
}

// Keys of the scores from -1 down to -256, counted from the first one; scores outside share the
// first or the last key. A k-th best log-probability is in this range, where the bits resolve more
// than the same number of bits of the whole key.
constexpr int kWindowBits = 26;
constexpr uint32_t kWindowKeys = 1u << kWindowBits;
constexpr uint32_t kFirstWindowKey = 0xbf800000u;

__device__ inline uint32_t window_of_key(uint32_t key) {
  if (key < kFirstWindowKey) return 0;
  const uint32_t place = key - kFirstWindowKey;
  return place < kWindowKeys ? place : kWindowKeys - 1;
}

// The last key of a place in the window.
__device__ inline uint32_t key_of_window(uint32_t place) {
  return place < kWindowKeys - 1 ? kFirstWindowKey + place : 0xffffffffu;
}

__device__ inline int32_t candidates_of_row(const Selection& from, int64_t row) {
  return from.counts != nullptr ? from.counts[row] : from.offsets[row + 1] - from.offsets[row];
}

}  // namespace grace
