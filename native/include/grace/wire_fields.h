// The table of request fields: one row for each field of every message that C++ reads, and one for
// each fault of a request. The pass over the bytes (wire_spans.h), the limits and the words of
// native/wire.py follow from these rows.
#pragma once

#include <cstddef>
#include <cstdint>

namespace grace::wire {

// How a field is written, and how it is read.
enum class Kind {
  kMessage,    // its parts are merged
  kMap,        // from names to messages; of one name, the last entry counts
  kNumberMap,  // from names to uint32
  kRecords,    // repeated messages, which are checked and counted
  kOpaque,     // bytes of a message, which the pass does not read
  kText,
  kTexts,
  kNumber,
  kNumber32,
  kSigned32,  // an enum, too
  kBool,
  kFloat,
  kDouble,  // `optional`; in the message of a map's entry
  kIntegers,
  kFloats,
  kTotal,  // no field, but a limit of several fields together; it comes after them
};

// The settings in `limits` that bound fields.
#define GRACE_WIRE_LIMITS(X) \
  X(request_id_bytes)        \
  X(value_bytes)             \
  X(names)                   \
  X(values_per_name)         \
  X(user_values)             \
  X(filter_values)           \
  X(events)                  \
  X(exclude_ads)             \
  X(max_ads)

// X(field, the message, map or field that it is in, its number there, kind, path in errors,
//   the limit of its size or count, what that counts, the total that this adds to)
// {name} is the name of the map's entry, {side} the one of the map in it. The field of a map's
// entry is a field of the entry's message. The names of all maps are bounded by value_bytes.
#define GRACE_WIRE_FIELDS(X)                                                                       \
  X(None, None, 0, Message, "", none, "", None)                                                    \
                                                                                                   \
  X(Request, None, 0, Message, "RetrieveRequest", none, "", None)                                  \
  X(RequestId, Request, 1, Text, "request_id", request_id_bytes, "bytes", None)                    \
  X(Model, Request, 2, Text, "model", value_bytes, "bytes", None)                                  \
  X(SidSpace, Request, 3, Text, "sid_space", value_bytes, "bytes", None)                           \
  X(User, Request, 4, Map, "user", names, "names", None)                                           \
  X(UserValues, User, 1, Texts, "user.{name}.values", values_per_name, "values", ValuesOfAll)      \
  X(UserNumber, User, 2, Double, "user.{name}.number", none, "", None)                             \
  X(ValuesOfAll, Request, 0, Total, "user", user_values, "values", None)                           \
  X(Features, Request, 5, Message, "features", none, "", None)                                     \
  X(Dense, Features, 1, Map, "features.dense", none, "names", FeatureNames)                        \
  X(DenseValues, Dense, 1, Floats, "features.dense.{name}.values", values_per_name, "values",      \
    None)                                                                                          \
  X(Categorical, Features, 2, Map, "features.categorical", none, "names", FeatureNames)            \
  X(CategoricalIds, Categorical, 1, Integers, "features.categorical.{name}.ids", values_per_name,  \
    "ids", None)                                                                                   \
  X(Bags, Features, 3, Map, "features.bags", none, "names", FeatureNames)                          \
  X(BagIds, Bags, 1, Integers, "features.bags.{name}.ids", values_per_name, "ids", None)           \
  X(Sequences, Features, 4, Map, "features.sequences", none, "names", FeatureNames)                \
  X(Sids, Sequences, 1, Integers, "features.sequences.{name}.sids", events, "events", None)        \
  X(Timestamps, Sequences, 2, Integers, "features.sequences.{name}.timestamps_ms", events,         \
    "events", None)                                                                                \
  X(Sides, Sequences, 3, Map, "features.sequences.{name}.side", none, "names", FeatureNames)       \
  X(SideIds, Sides, 1, Integers, "features.sequences.{name}.side.{side}.ids", events, "events",    \
    None)                                                                                          \
  X(Tokens, Features, 5, Map, "features.tokens", none, "names", FeatureNames)                      \
  X(TokenIds, Tokens, 1, Integers, "features.tokens.{name}.ids", events, "ids", None)              \
  X(FeatureNames, Request, 0, Total, "features", names, "names", None)                             \
  X(MaxAds, Request, 6, Number32, "max_ads", max_ads, "ads", None)                                 \
  X(Profile, Request, 7, Text, "profile", value_bytes, "bytes", None)                              \
  X(Priority, Request, 8, Text, "priority", value_bytes, "bytes", None)                            \
  X(ExcludeAds, Request, 9, Integers, "exclude_ads", exclude_ads, "ads", ExcludedIds)              \
  X(IncludeSids, Request, 10, Bool, "include_sids", none, "", None)                                \
  X(Exclude, Request, 11, Map, "exclude", names, "names", None)                                    \
  X(ExcludeIds, Exclude, 1, Integers, "exclude.{name}.ids", none, "ids", ExcludedIds)              \
  X(ExcludedIds, Request, 0, Total, "exclude", exclude_ads, "ids with those of exclude_ads", None) \
  X(AtMost, Request, 12, NumberMap, "at_most", names, "names", None)                               \
  X(Strict, Request, 13, Bool, "strict", none, "", None)                                           \
  X(At, Request, 14, Number, "at", none, "", None)                                                 \
  X(UtcOffset, Request, 15, Signed32, "utc_offset_minutes", none, "", None)                        \
  X(Filters, Request, 16, Map, "filters", names, "names", None)                                    \
  X(FilterAnyOf, Filters, 1, Texts, "filters.{name}.any_of", filter_values, "values", None)        \
  X(FilterNoneOf, Filters, 2, Texts, "filters.{name}.none_of", filter_values, "values", None)      \
  X(FilterUnknown, Filters, 3, Signed32, "filters.{name}.unknown", none, "", None)                 \
                                                                                                   \
  X(Update, None, 0, Message, "UpdateAdsRequest", none, "", None)                                  \
  X(Sequence, Update, 1, Number, "sequence", none, "", None)                                       \
  X(UpdateKind, Update, 2, Signed32, "kind", none, "", None)                                       \
  X(Stop, Update, 3, Map, "stop", none, "levels", None)                                            \
  X(StopIds, Stop, 1, Integers, "stop.{name}.ids", none, "ids", None)                              \
  X(Resume, Update, 4, Map, "resume", none, "levels", None)                                        \
  X(ResumeIds, Resume, 1, Integers, "resume.{name}.ids", none, "ids", None)                        \
  X(Weights, Update, 5, Records, "weights", none, "weights", None)                                 \
  X(WeightAd, Weights, 1, Number, "weights.ad_id", none, "", None)                                 \
  X(Weight, Weights, 2, Float, "weights.weight", none, "", None)                                   \
  X(Unweight, Update, 6, Integers, "unweight", none, "ids", None)                                  \
  X(Put, Update, 7, Texts, "put", none, "ads", None)                                               \
  X(Remove, Update, 8, Integers, "remove", none, "ids", None)                                      \
  X(WaitVisible, Update, 9, Bool, "wait_visible", none, "", None)                                  \
  X(Part, Update, 10, Number32, "part", none, "", None)                                            \
  X(Parts, Update, 11, Number32, "parts", none, "", None)                                          \
  X(ChangedAt, Update, 12, Number, "changed_at", none, "", None)                                   \
                                                                                                   \
  X(Explain, None, 0, Message, "ExplainRequest", none, "", None)                                   \
  X(ExplainedAd, Explain, 1, Number, "ad_id", none, "", None)                                      \
  X(ExplainedRequest, Explain, 2, Opaque, "request", none, "", None)

// X(field, its least value, its greatest)
#define GRACE_WIRE_BOUNDS(X)                                                \
  X(At, 0, 253'402'300'799'999) /* milliseconds, to the end of year 9999 */ \
  X(UtcOffset, -840, 840)       /* time zones go from -12:00 to +14:00 */   \
  X(FilterUnknown, 0, 2)

// X(fault, whether the log may have the names in its path, its words)
// It may if the fault compares with the schema or the model, which declare these names.
#define GRACE_WIRE_FAULTS(X)                                                                       \
  X(Nothing, false, "")                                                                            \
  X(Malformed, false, "the bytes are not a grace.v1.{path}")                                       \
  X(UnknownField, false,                                                                           \
    "it has a field that this server does not know (number {value}, wire type {limit}); leave it " \
    "out, or upgrade the server first")                                                            \
  X(TooMany, false, "{value} {unit}, at most {limit} (limits.{setting})")                          \
  X(LongName, false, "a name has {value} bytes, at most {limit} (limits.value_bytes)")             \
  X(LongValue, false, "a value has {value} bytes, at most {limit} (limits.value_bytes)")           \
  X(NotFinite, false, "{number} is not finite")                                                    \
  X(OutOfBounds, false, "{value} is not within {place} to {limit}")                                \
  X(ReservedValue, false, "'*' is reserved; name values, or send none")                            \
  X(DistinctValues, true,                                                                          \
    "{value} distinct values, at most {limit} are allowed (max_request_values in the targeting "   \
    "schema); send fewer")                                                                         \
  X(TakesValues, true, "{name} takes values; send user.{name}.values")                             \
  X(TakesNumber, true, "{name} is a range; send user.{name}.number")                               \
  X(DenseSize, true, "{value} values, the model takes {limit}")                                    \
  X(NotOneId, true, "{value} ids, the model takes one")                                            \
  X(IdRange, true, "{value} is not within 0 to {limit}")                                           \
  X(CutEvent, true, "{value} tokens, not a multiple of {limit}")                                   \
  X(TokenRange, true, "token {value} at position {place} of a SID is not within 0 to {limit}")     \
  X(NotPerEvent, true, "number of values: {value}, of events: {limit}; send one for each event")   \
  X(NegativeTime, true, "{value} is negative")                                                     \
  X(LongPrompt, true,                                                                              \
    "{value} ids, the model reads at most {limit} (prompt.max_tokens); send fewer")                \
  X(TwoPrompts, true,                                                                              \
    "{value} events, and the request has features.tokens.prompt.ids, too; send one of them")       \
  X(OtherKind, true, "the model reads it as {other}.{name}")

#define GRACE_WIRE_NAME(name, ...) k##name,
#define GRACE_WIRE_SETTING(name) name,
enum class Field : uint8_t { GRACE_WIRE_FIELDS(GRACE_WIRE_NAME) };
enum class Wrong : int64_t { GRACE_WIRE_FAULTS(GRACE_WIRE_NAME) };
enum class Limit : uint8_t { none, GRACE_WIRE_LIMITS(GRACE_WIRE_SETTING) };
#undef GRACE_WIRE_NAME
#undef GRACE_WIRE_SETTING

constexpr size_t index_of(Field field) { return static_cast<size_t>(field); }
constexpr size_t index_of(Limit limit) { return static_cast<size_t>(limit); }

struct Row {
  Field field;
  Field within;
  uint32_t number;
  Kind kind;
  Limit limit;
  Field total;
};

#define GRACE_WIRE_ROW(field, within, number, kind, path, limit, unit, total) \
  {Field::k##field, Field::k##within, number, Kind::k##kind, Limit::limit, Field::k##total},
constexpr Row kRows[] = {GRACE_WIRE_FIELDS(GRACE_WIRE_ROW)};
#undef GRACE_WIRE_ROW

constexpr size_t kFields = sizeof kRows / sizeof *kRows;
constexpr uint32_t kMostNumber = 16;
constexpr uint32_t kMostOfShortTag = 15;  // a tag with a greater number has more than one byte

struct Bound {
  Field field;
  int64_t least;
  int64_t most;
};

#define GRACE_WIRE_BOUND(field, least, most) {Field::k##field, least, most},
constexpr Bound kBounds[] = {GRACE_WIRE_BOUNDS(GRACE_WIRE_BOUND)};
#undef GRACE_WIRE_BOUND

constexpr const Row& row_of(Field field) { return kRows[index_of(field)]; }

// A set of fields.
constexpr uint64_t bit_of(Field field) { return uint64_t{1} << index_of(field); }
static_assert(kFields <= 64, "a set of fields has 64 bits");

}  // namespace grace::wire
