// The features stage's look-ups, which kernels/features/feature_ops.py defines: one launch for the
// inputs that are not sequences, one for all events.
//
// What makes it quick: a thread reads its rows' numbers first and then all the rows at once, so it
// waits for memory twice. Events are read 16 bytes at a time. Where a batch's rows are is in device
// memory, so a recorded launch finds each batch's.
#include "launch.cuh"
#include "numbers.cuh"

namespace {

using grace::as_float;
using grace::in_device_memory;
using grace::rounded;

constexpr int kBlock = 128;     // threads of a block
constexpr int kBlocksOfSm = 8;  // at least; more would leave too few registers for the rows
constexpr int kAtOnce = 8;      // rows that a thread has in flight
constexpr int kWideLoad = 16;   // bytes
constexpr int kMostSequences = 64;

struct Lookups {
  const float* numbers;        // [requests, numbers]
  const int32_t* categorical;  // [requests, categorical]
  const int32_t* bag_offsets;  // [requests * bags + 1]
  const int32_t* bag_rows;
};

// Requests with inputs of each kind; feature_ops_cuda.py has the same layout.
struct SingleInputs {
  const void* dense_weight;  // [dense * width, numbers]
  const void* dense_bias;    // [dense * width]
  const void* categorical_table;
  const void* bag_table;
  const Lookups* lookups;
  void* joined;  // [requests, dense + categorical + bags, width]
  int64_t requests;
  int64_t width;
  int64_t num_numbers;
  int64_t num_dense;
  int64_t num_categorical;
  int64_t num_bags;
  int64_t kind;  // numbers.cuh
};

struct Events {
  const int32_t* const* rows;  // -> [requests, places, ids]
  int64_t requests;
  int64_t places;
  int64_t ids;
  int64_t width;
  int32_t nothing;               // the row of zeros
  int32_t ends[kMostSequences];  // of each sequence's places in a request; they follow each other
};

template <typename Number>
__device__ float dense_value(const SingleInputs& from, int64_t request, int64_t column) {
  const Number* weight = static_cast<const Number*>(from.dense_weight) + column * from.num_numbers;
  const float* numbers = in_device_memory(from.lookups->numbers) + request * from.num_numbers;
  float total = 0.0f;
#pragma unroll 8
  for (int64_t i = 0; i < from.num_numbers; ++i) total += numbers[i] * as_float(weight[i]);
  return total + as_float(static_cast<const Number*>(from.dense_bias)[column]);
}

template <typename Number>
__device__ float bag_mean(const SingleInputs& from, int64_t bag, int64_t column) {
  const Number* table = static_cast<const Number*>(from.bag_table) + column;
  const int32_t* offsets = in_device_memory(from.lookups->bag_offsets) + bag;
  const int32_t* bag_rows = in_device_memory(from.lookups->bag_rows);
  const int32_t begin = offsets[0], end = offsets[1];
  float total = 0.0f;
  for (int32_t first = begin; first < end; first += kAtOnce) {
    int64_t rows[kAtOnce];
    float found[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) rows[i] = first + i < end ? bag_rows[first + i] : -1;
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      found[i] = rows[i] >= 0 ? as_float(table[rows[i] * from.width]) : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) total += found[i];
  }
  return total / static_cast<float>(max(end - begin, 1));
}

// A block for each input of each request, dense ones first, then categorical ones, then bags.
template <typename Number>
__global__ void __launch_bounds__(kBlock, kBlocksOfSm) join_inputs(const SingleInputs from) {
  const int64_t inputs = gridDim.x, request = blockIdx.y;
  const int64_t input = blockIdx.x;
  Number* joined = static_cast<Number*>(from.joined) + (request * inputs + input) * from.width;
  for (int64_t column = threadIdx.x; column < from.width; column += kBlock) {
    int64_t own = input;
    float value;
    if (own < from.num_dense) {
      value = dense_value<Number>(from, request, own * from.width + column);
    } else if ((own -= from.num_dense) < from.num_categorical) {
      const int32_t* rows = in_device_memory(from.lookups->categorical);
      const int64_t row = rows[request * from.num_categorical + own];
      value =
          as_float(static_cast<const Number*>(from.categorical_table)[row * from.width + column]);
    } else {
      own -= from.num_categorical;
      value = bag_mean<Number>(from, request * from.num_bags + own, column);
    }
    joined[column] = rounded<Number>(value);
  }
}

// A thread for each kWide neighbouring columns of each place. Sequences are ordered by sequence,
// then request, then place.
template <typename Number, int kWide>
__global__ void __launch_bounds__(kBlock, kBlocksOfSm)
    sum_events(const Number* table, const Events from, Number* states, bool* mask) {
  struct alignas(kWide * sizeof(Number)) Wide {
    Number values[kWide];
  };
  const uint32_t vectors = static_cast<uint32_t>(from.width) / kWide;
  const uint32_t thread = blockIdx.x * kBlock + threadIdx.x;
  const uint32_t event = thread / vectors, column = thread % vectors * kWide;
  const uint32_t places = static_cast<uint32_t>(from.places);
  const uint32_t request = event / places, place = event % places;
  if (request >= from.requests) return;

  const int32_t* own = in_device_memory(*from.rows) + int64_t{event} * from.ids;
  float totals[kWide] = {};
  for (int64_t first = 0; first < from.ids; first += kAtOnce) {
    int64_t rows[kAtOnce];
    Wide found[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i)
      rows[i] = first + i < from.ids ? own[first + i] : from.nothing;
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      found[i] = *reinterpret_cast<const Wide*>(table + rows[i] * from.width + column);
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
#pragma unroll
      for (int j = 0; j < kWide; ++j) totals[j] += as_float(found[i].values[j]);
    }
  }

  uint32_t begin = 0, end = static_cast<uint32_t>(from.ends[0]);
  for (int i = 1; place >= end; ++i) {
    begin = end;
    end = static_cast<uint32_t>(from.ends[i]);
  }
  const int64_t state = from.requests * begin + int64_t{request} * (end - begin) + (place - begin);
  Wide sum;
#pragma unroll
  for (int j = 0; j < kWide; ++j) sum.values[j] = rounded<Number>(totals[j]);
  *reinterpret_cast<Wide*>(states + state * from.width + column) = sum;
  if (column == 0) mask[state] = own[0] != from.nothing;
}

template <typename Number>
void launch_sum_events(void* stream, const void* table, const Events& from, void* states,
                       bool* mask) {
  constexpr int kMost = kWideLoad / sizeof(Number);
  const bool wide = from.width % kMost == 0 && reinterpret_cast<uintptr_t>(table) % kWideLoad == 0;
  const int64_t threads = from.requests * from.places * (wide ? from.width / kMost : from.width);
  grace::require(threads < int64_t{1} << 31, "sum_events: more than 2^31 sums in a batch");
  const grace::LaunchShape shape{dim3(grace::blocks_of(threads, kBlock)), kBlock};
  grace::launch("sum_events", stream, shape,
                wide ? sum_events<Number, kMost> : sum_events<Number, 1>,
                static_cast<const Number*>(table), from, static_cast<Number*>(states), mask);
}

}  // namespace

// `bytes` is the caller's size of SingleInputs.
GRACE_API int32_t grace_cuda_join_inputs(void* stream, int64_t bytes, const SingleInputs* from) {
  return grace::guarded([&] {
    grace::require(bytes == sizeof(SingleInputs), "join_inputs: another layout of SingleInputs");
    const int64_t inputs = from->num_dense + from->num_categorical + from->num_bags;
    grace::require(from->requests <= 65535, "join_inputs: more than 65535 requests");
    const dim3 blocks(static_cast<unsigned>(inputs), static_cast<unsigned>(from->requests));
    grace::with_numbers(from->kind, [&](auto number) {
      grace::launch("join_inputs", stream, {blocks, kBlock}, join_inputs<decltype(number)>, *from);
    });
  });
}

// Writes the states and the mask of each sequence; `lengths` are the sequences' places, in order.
//   table   [rows, width]; row `nothing` is zeros
//   events  the place, in device memory, of the address of [requests, places, ids]
GRACE_API int32_t grace_cuda_sum_events(void* stream, const int32_t* const* events, int64_t kind,
                                        const void* table, int64_t nothing, int64_t width,
                                        int64_t requests, int64_t ids, int64_t num_sequences,
                                        const int32_t* lengths, void* states, bool* mask) {
  return grace::guarded([&] {
    grace::require(num_sequences >= 1 && num_sequences <= kMostSequences,
                   "sum_events: there must be 1 to 64 sequences");
    Events from{events, requests, 0, ids, width, static_cast<int32_t>(nothing), {}};
    for (int64_t i = 0; i < num_sequences; ++i) {
      from.places += lengths[i];
      from.ends[i] = static_cast<int32_t>(from.places);
    }
    grace::with_numbers(kind, [&](auto number) {
      launch_sum_events<decltype(number)>(stream, table, from, states, mask);
    });
  });
}
