// Matched ads to the bytes of grace.v1.RetrieveResponse. server/stages/replies.py is the definition: small
// fields in the order of their numbers, the long ones behind them.
#include <vector>

#include "grace/abi.h"
#include "grace/expand.h"
#include "grace/wire_writer.h"

namespace {

using grace::exact::Reply;
using grace::wire::Writer;

constexpr int kTimings = 5;

// Bytes of other fields that are the same for the whole batch, or that Python has written.
struct Texts {
  const char* const* begins;
  const int64_t* sizes;

  std::string_view operator[](int64_t i) const {
    return {begins[i], static_cast<size_t>(sizes[i])};
  }
};

void write_reply(Writer& out, const Reply& reply, std::string_view request_id,
                 std::string_view served_by, std::string_view ignored, std::string_view profile,
                 const uint32_t* timings) {
  const auto returned = static_cast<int64_t>(reply.ad_ids.size());
  const int64_t counts[] = {reply.counts.leaves, reply.counts.generated, reply.counts.matched,
                            returned};
  out.text(1, request_id);
  grace::wire::write_numbers(out, 5, counts, 4);
  out.bytes(served_by.data(), static_cast<int64_t>(served_by.size()));
  grace::wire::write_numbers(out, 8, timings, kTimings);
  out.bytes(ignored.data(), static_cast<int64_t>(ignored.size()));
  out.number(10, returned < reply.counts.matched ? 1 : 0);
  out.text(12, profile);
  out.packed(2, reply.ad_ids.data(), returned * int64_t{sizeof(int64_t)});
  out.packed(3, reply.scores.data(), returned * int64_t{sizeof(float)});
}

}  // namespace

// Of replies that grace_exact_match made: message i is that of row rows[i].
//   texts, sizes  [2, count]: request ids, then the fields 9 that Python has written
//   common        served_by, the fields 6 and 7 as bytes, and the profile's name
//   timings       uint32 [count, 5]: the fields of grace.v1.Timings
//   ends          int64 [count]: where each message ends in `out`
GRACE_API int32_t grace_replies_write(uint64_t replies_handle, int64_t count, const int32_t* rows,
                                      const char* const* texts, const int64_t* sizes,
                                      const char* served_by, int64_t served_by_size,
                                      const char* profile, int64_t profile_size,
                                      const uint32_t* timings, int64_t room, uint8_t* out,
                                      int64_t* ends) {
  return grace::guarded([&] {
    const auto& replies = *reinterpret_cast<const std::vector<Reply>*>(replies_handle);
    const Texts request_ids{texts, sizes};
    const Texts ignored{texts + count, sizes + count};
    Writer writer(out, room);
    for (int64_t i = 0; i < count; ++i) {
      write_reply(writer, replies.at(static_cast<size_t>(rows[i])), request_ids[i],
                  {served_by, static_cast<size_t>(served_by_size)}, ignored[i],
                  {profile, static_cast<size_t>(profile_size)}, timings + i * kTimings);
      ends[i] = writer.written();
    }
  });
}
