// The first of selection's two kernels. A warp per beam row finds the row's normaliser, and the
// best score of each of its 32 groups of candidates: a group has the places that are equal
// modulo 32. A row without candidates is not read. A group with a score that is NaN or +inf gets
// NaN.
#pragma once

#include "selection.cuh"

namespace grace {

constexpr int kGroups = kWarp;
constexpr int kScoreBlock = 128;
constexpr int kScoreBlocks = 10;  // the least number per multiprocessor
constexpr int kEarly = 4;         // candidates per lane at a time
constexpr int kCached = 16;       // logits per lane that stay in registers: rows of up to 512

template <typename Reduce>
__device__ float reduce_warp(float value, Reduce reduce) {
#pragma unroll
  for (int apart = kWarp / 2; apart > 0; apart /= 2) {
    value = reduce(value, __shfl_xor_sync(kAllLanes, value, apart));
  }
  return value;
}

// How a warp reads its row: in a loop, or at once into registers, one or four logits per read.
enum class Reading { kLoop, kOnes, kFours };

// Returns the largest logit, and the log of the sum of all relative to it.
template <Reading kReading, typename Logit>
__device__ float2 normaliser(const ScoredRow<Logit>& row, int64_t columns) {
  const int lane = threadIdx.x % kWarp;
  const auto larger = [](float a, float b) { return fmaxf(a, b); };
  const auto sum = [](float a, float b) { return __fadd_rn(a, b); };
  float highest = -INFINITY, total = 0.0f;
  if constexpr (kReading == Reading::kLoop) {
    for (int64_t column = lane; column < columns; column += kWarp) {
      highest = fmaxf(highest, row.logit(column));
    }
    highest = reduce_warp(highest, larger);
    for (int64_t column = lane; column < columns; column += kWarp) {
      total += __expf(row.logit(column) - highest);
    }
  } else {
    float logits[kCached];
    if constexpr (kReading == Reading::kFours) {
#pragma unroll
      for (int i = 0; i < kCached; i += 4) {
        const int64_t column = 4 * lane + i * kWarp;
        row.four_logits(column, column < columns, logits + i);
      }
    } else {
#pragma unroll
      for (int i = 0; i < kCached; ++i) {
        const int64_t column = lane + i * kWarp;
        logits[i] = column < columns ? row.logit(column) : -INFINITY;
      }
    }
#pragma unroll
    for (int i = 0; i < kCached; ++i) highest = fmaxf(highest, logits[i]);
    highest = reduce_warp(highest, larger);
#pragma unroll
    for (int i = 0; i < kCached; ++i) total += __expf(logits[i] - highest);
  }
  return make_float2(highest, logf(reduce_warp(total, sum)));
}

template <Reading kReading, typename Logit>
__global__ void __launch_bounds__(kScoreBlock, kScoreBlocks) score_rows(Selection from) {
  const int lane = threadIdx.x % kWarp;
  const int64_t index = (int64_t{blockIdx.x} * kScoreBlock + threadIdx.x) / kWarp;
  if (index >= from.requests * from.beams) return;
  const int32_t count = candidates_of_row(from, index);
  float best = -INFINITY;
  if (count > 0) {
    ScoredRow<Logit> row(from, index);
    // These reads start together with the logits', before anything is computed.
    int32_t tokens[kEarly];
#pragma unroll
    for (int i = 0; i < kEarly; ++i) {
      const int32_t place = lane + i * kGroups;
      tokens[i] = place < count ? row.tokens[place] : 0;
    }
    const float2 found = from.log_sums != nullptr ? make_float2(0.0f, from.log_sums[index])
                                                  : normaliser<kReading>(row, from.columns);
    row.highest = found.x;
    row.log_sum = found.y;
    bool finite = true;
    const auto see = [&](float total) {
      best = fmaxf(best, total);
      finite = finite && total < INFINITY;
    };
#pragma unroll
    for (int i = 0; i < kEarly; ++i) {
      if (lane + i * kGroups < count) see(row.total_of(tokens[i]));
    }
    for (int32_t place = lane + kEarly * kGroups; place < count; place += kEarly * kGroups) {
      float totals[kEarly];
      row.totals(place, kGroups, count, totals);
#pragma unroll
      for (int i = 0; i < kEarly; ++i) see(totals[i]);
    }
    if (!finite) best = NAN;
    if (lane == 0) from.normalisers[index] = found;
  }
  from.group_best[index * kGroups + lane] = best;
}

}  // namespace grace
