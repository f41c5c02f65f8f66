// Reads and writes a grace.v1.UpdateAdsRequest, which may have millions of ids.
#include "grace/abi.h"
#include "grace/wire_maps.h"

namespace grace::wire {

namespace {

// Field numbers of UpdateAdsRequest.
enum : uint32_t { kSequence = 1, kKind = 2, kStop = 3, kResume = 4, kWeights = 5, kUnweight = 6 };

constexpr uint64_t kFull = 2;  // KIND_FULL

struct AdWeight {
  int64_t ad_id = 0;
  float weight = 0;
};

struct Update {
  uint64_t sequence = 0;
  int32_t kind = 0;
  LastOfEachName<IdsEntry> stop, resume;
  int64_t weights = 0, unweight = 0;  // the numbers of them
};

AdWeight read_weight(Reader message) {
  AdWeight read;
  every_field(message, [&](Reader& fields, uint32_t tag) {
    if (tag == tag_of(1, kVarint)) {
      read.ad_id = static_cast<int64_t>(fields.varint());
    } else if (tag == tag_of(2, kFixed32)) {
      read.weight = fields.fixed32();
    } else {
      return false;
    }
    return true;
  });
  return read;
}

// Throws Malformed or UnknownField, whichever comes first in the bytes.
Update read_update(Reader message) {
  Update read;
  every_field(message, [&](Reader& fields, uint32_t tag) {
    if (tag == tag_of(kSequence, kVarint)) {
      read.sequence = fields.varint();
    } else if (tag == tag_of(kKind, kVarint)) {
      read.kind = static_cast<int32_t>(fields.varint());
    } else if (tag == tag_of(kStop, kBytes)) {
      read.stop.put(read_ids_entry(fields.bytes()));
    } else if (tag == tag_of(kResume, kBytes)) {
      read.resume.put(read_ids_entry(fields.bytes()));
    } else if (tag == tag_of(kWeights, kBytes)) {
      read_weight(fields.bytes());
      ++read.weights;
    } else {
      return count_integers(fields, tag, kUnweight, read.unweight);
    }
    return true;
  });
  return read;
}

int64_t count_of(const LastOfEachName<IdsEntry>& levels) {
  int64_t ids = 0;
  for (const IdsEntry& level : levels.entries()) ids += level.ids;
  return ids;
}

int64_t size_of_ids(const int64_t* ids, int64_t count) {
  int64_t size = 0;
  for (int64_t i = 0; i < count; ++i) size += varint_size(static_cast<uint64_t>(ids[i]));
  return size;
}

// Writes a grace.v1.Ids whose ids take `size` bytes.
void write_ids(Writer& out, const int64_t* ids, int64_t count, int64_t size) {
  out.head(1, size);
  for (int64_t i = 0; i < count; ++i) out.varint(static_cast<uint64_t>(ids[i]));
}

void write_stop(Writer& out, std::string_view level, const int64_t* ids, int64_t count) {
  const auto name_size = static_cast<int64_t>(level.size());
  const int64_t size = size_of_ids(ids, count);
  out.head(kStop, field_size(name_size) + field_size(field_size(size)));
  out.text(1, level);
  out.head(2, field_size(size));
  write_ids(out, ids, count, size);
}

void write_weight(Writer& out, int64_t ad_id, float weight) {
  const auto id = static_cast<uint64_t>(ad_id);
  out.head(kWeights, 1 + varint_size(id) + 1 + int64_t{sizeof weight});
  out.varint(tag_of(1, kVarint));
  out.varint(id);
  out.varint(tag_of(2, kFixed32));
  out.bytes(&weight, sizeof weight);
}

}  // namespace

// Checks the bytes of an update and counts what it has.
//   head  int64 [9]   1 if the bytes are not an update; the tag of an unknown field; sequence,
//                     kind; the numbers of levels in stop and in resume, of their ids, of weights,
//                     and of ads in unweight
GRACE_API int32_t grace_update_read(const char* message, int64_t size, int64_t* head) {
  return guarded([&] {
    Update read;
    int64_t malformed = 0, unknown = 0;
    try {
      read = read_update(Reader(message, size));
    } catch (const UnknownField& found) {
      unknown = found.tag;
    } catch (const Malformed&) {
      malformed = 1;
    }
    const int64_t numbers[] = {
        malformed,
        unknown,
        static_cast<int64_t>(read.sequence),
        read.kind,
        static_cast<int64_t>(read.stop.size()),
        static_cast<int64_t>(read.resume.size()),
        count_of(read.stop) + count_of(read.resume),
        read.weights,
        read.unweight,
    };
    for (const int64_t number : numbers) *head++ = number;
  });
}

// Reads a whole update. The caller has read its head and made the arrays.
//   levels    int64 [levels, 3]   of stop, then of resume, by name: begin and size of the name, the
//                                 number of its ids
//   ids       int64 [ids]         of one level after the other
//   ad_ids    int64 [weights]     in the order of the bytes, as are those below
//   weights   float32 [weights]
//   unweight  int64 [unweight]
GRACE_API int32_t grace_update_take(const char* message, int64_t size, int64_t levels_of_both,
                                    int64_t ids_of_all, int64_t weights_of_all,
                                    int64_t unweight_of_all, int64_t* levels, int64_t* ids,
                                    int64_t* ad_ids, float* weights, int64_t* unweight) {
  return guarded([&] {
    Update read = read_update(Reader(message, size));
    require(static_cast<int64_t>(read.stop.size() + read.resume.size()) == levels_of_both &&
                count_of(read.stop) + count_of(read.resume) == ids_of_all &&
                read.weights == weights_of_all && read.unweight == unweight_of_all,
            "update_take: other numbers than the update's head says");
    copy_ids(read.stop, message, levels, ids);
    copy_ids(read.resume, message, levels, ids);
    const auto take = [&](uint64_t ad) { *unweight++ = static_cast<int64_t>(ad); };
    each_field(Reader(message, size), [&](Reader& fields, uint32_t tag) {
      if (tag != tag_of(kWeights, kBytes)) return take_integers(fields, tag, kUnweight, take);
      const AdWeight given = read_weight(fields.bytes());
      *ad_ids++ = given.ad_id;
      *weights++ = given.weight;
      return true;
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
    writer.number(kSequence, sequence);
    writer.number(kKind, kFull);
    for (int64_t i = 0; i < levels; ++i) {
      write_stop(writer, names[i], ids, counts[i]);
      ids += counts[i];
    }
    for (int64_t i = 0; i < weights_of_all; ++i) write_weight(writer, ad_ids[i], weights[i]);
    *written = writer.written();
  });
}

// Writes a grace.v1.Ids, and returns its size in `written`.
GRACE_API int32_t grace_ids_write(int64_t count, const int64_t* ids, int64_t room, uint8_t* out,
                                  int64_t* written) {
  return guarded([&] {
    Writer writer(out, room);
    write_ids(writer, ids, count, size_of_ids(ids, count));
    *written = writer.written();
  });
}

}  // namespace grace::wire
