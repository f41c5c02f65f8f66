// The weights of a grace.v1.UpdateAdsRequest, and how it is written; it may have millions of ids.
#include "grace/wire.h"
#include "grace/wire_fields.h"

namespace grace::wire {

namespace {

constexpr uint64_t kFull = 2;  // KIND_FULL

constexpr uint32_t number_of(Field field) { return row_of(field).number; }

// Writes a grace.v1.Ids.
void write_ids(Writer& out, const int64_t* ids, int64_t count) {
  out.message(1, [&] {
    for (int64_t i = 0; i < count; ++i) out.varint(static_cast<uint64_t>(ids[i]));
  });
}

}  // namespace

// The weights of an update that was read, in the order of its bytes: as many as its head says.
GRACE_API int32_t grace_update_weights(const char* message, int64_t size, int64_t count,
                                       int64_t* ad_ids, float* weights) {
  return guarded([&] {
    int64_t taken = 0;
    each_bytes(Reader(message, size), number_of(Field::kWeights), [&](Reader record) {
      require(taken < count, "update_weights: more weights than the update's head says");
      ad_ids[taken] = 0;
      weights[taken] = 0;
      each_field(record, [&](Reader& weight, uint32_t part) {
        if (part == tag_of(number_of(Field::kWeightAd), kVarint)) {
          ad_ids[taken] = static_cast<int64_t>(weight.varint());
        } else {
          weights[taken] = weight.fixed32();
        }
        return true;
      });
      ++taken;
    });
  });
}

// Writes the FULL update with these stops and weights; returns its size in `written`.
//   counts  int64 [levels]   the number of ids of each level
//   ids     int64 [sum of counts]
GRACE_API int32_t grace_update_write(uint64_t sequence, int64_t levels, const char* const* names,
                                     const int64_t* counts, const int64_t* ids,
                                     int64_t weights_of_all, const int64_t* ad_ids,
                                     const float* weights, int64_t room, uint8_t* out,
                                     int64_t* written) {
  return guarded([&] {
    Writer writer(out, room);
    writer.number(number_of(Field::kSequence), sequence);
    writer.number(number_of(Field::kUpdateKind), kFull);
    for (int64_t i = 0; i < levels; ++i) {
      writer.message(number_of(Field::kStop), [&] {
        writer.text(1, names[i]);
        writer.message(2, [&] { write_ids(writer, ids, counts[i]); });
      });
      ids += counts[i];
    }
    for (int64_t i = 0; i < weights_of_all; ++i) {
      writer.message(number_of(Field::kWeights), [&] {
        writer.varint(tag_of(number_of(Field::kWeightAd), kVarint));
        writer.varint(static_cast<uint64_t>(ad_ids[i]));
        writer.varint(tag_of(number_of(Field::kWeight), kFixed32));
        writer.bytes(&weights[i], sizeof weights[i]);
      });
    }
    *written = writer.written();
  });
}

// Writes a grace.v1.Ids, and returns its size in `written`.
GRACE_API int32_t grace_ids_write(int64_t count, const int64_t* ids, int64_t room, uint8_t* out,
                                  int64_t* written) {
  return guarded([&] {
    Writer writer(out, room);
    write_ids(writer, ids, count);
    *written = writer.written();
  });
}

}  // namespace grace::wire
