// What is wrong with a request, and with which of its fields. native/wire_faults.py has the words,
// in the order of these lists.
#pragma once

#include <cstdint>
#include <string_view>

namespace grace::wire {

enum class Wrong : int64_t {
  kNothing,
  kMalformed,
  kUnknownField,
  // Beyond a limit of the server.
  kRequestIdBytes,
  kTextBytes,
  kNameBytes,
  kValueBytes,
  kNames,
  kValues,
  kUserValues,
  kIds,
  kEvents,
  kExcludedAds,
  kExcludedIds,
  kMaxAds,
  kNotFinite,
  // Against the targeting schema.
  kReservedValue,
  kDistinctValues,
  // Against the model's inputs.
  kDenseSize,
  kNotOneId,
  kIdRange,
  kCutEvent,
  kTokenRange,
  kNotPerEvent,
  kNegativeTime,
  kOtherKind,
};

enum class Field : int64_t {
  kRequest,
  kRequestId,
  kModel,
  kSidSpace,
  kProfile,
  kPriority,
  kExcludeAds,
  kMaxAds,
  kExclude,
  kAtMost,
  kUser,
  kOneOfUser,
  kUserValues,
  kFeatures,
  // The maps of features, then an input by its name, then its values; in the order of their kinds.
  kDense,
  kCategorical,
  kBags,
  kSequences,
  kOneDense,
  kOneCategorical,
  kOneBag,
  kOneSequence,
  kDenseValues,
  kCategoricalIds,
  kBagIds,
  kSids,
  kTimestamps,
  kSides,
  kOneSide,
  kSideIds,
  kWholeMessage,
};

inline Field shifted(Field first, int64_t by) {
  return static_cast<Field>(static_cast<int64_t>(first) + by);
}

// The value of kNotFinite: 0 for NaN, else the sign of the infinity.
inline int64_t code_of(float not_finite) {
  return not_finite != not_finite ? 0 : not_finite > 0 ? 1 : -1;
}

// The names are part of the message, or empty.
struct Fault {
  Wrong wrong;
  Field field = Field::kRequest;
  int64_t value = 0;
  int64_t limit = 0;
  std::string_view name = {};
  std::string_view side = {};
  int64_t place = 0;
};

inline Fault unknown_field(uint32_t tag, Field within) {
  return {Wrong::kUnknownField, within, tag >> 3, tag & 7};
}

constexpr int64_t kFaultNumbers = 9;

// As the numbers of which native/wire_faults.py makes an error; names by where they are in
// `message`.
inline void write_fault(const Fault& fault, const char* message, int64_t* out) {
  const auto begin = [&](std::string_view name) {
    return name.empty() ? int64_t{0} : static_cast<int64_t>(name.data() - message);
  };
  const int64_t numbers[kFaultNumbers] = {
      static_cast<int64_t>(fault.wrong),
      static_cast<int64_t>(fault.field),
      begin(fault.name),
      static_cast<int64_t>(fault.name.size()),
      begin(fault.side),
      static_cast<int64_t>(fault.side.size()),
      fault.value,
      fault.limit,
      fault.place,
  };
  for (const int64_t number : numbers) *out++ = number;
}

}  // namespace grace::wire
