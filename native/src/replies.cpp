// Matched ads to the bytes of grace.v1.RetrieveResponse: small fields in the order of their
// numbers, the long ones after them.
#include <iterator>
#include <string_view>
#include <vector>

#include "grace/expand.h"
#include "grace/wire.h"

namespace {

using grace::require;
using grace::exact::Reply;
using grace::wire::Writer;

constexpr uint32_t kTimings = 5;

// Writes the fields 1, 2, ... of a message.
template <typename Number>
void write_numbers(Writer& out, const Number* values, uint32_t fields) {
  for (uint32_t i = 0; i < fields; ++i) out.number(i + 1, static_cast<uint64_t>(values[i]));
}

void write_reply(Writer& out, const Reply& reply, std::string_view request_id,
                 std::string_view served_by, std::string_view ignored, bool degraded,
                 std::string_view profile, const uint32_t* timings,
                 const std::vector<std::string_view>& labels) {
  const auto returned = static_cast<int64_t>(reply.ad_ids.size());
  const std::vector<int64_t>& failed = reply.counts.failed;
  require(failed.size() == labels.size(), "replies_write: a label for each component");
  const int64_t counts[] = {
      reply.counts.leaves,  reply.counts.generated, reply.counts.matched, returned,
      reply.counts.stopped, reply.counts.excluded,  reply.counts.limited,
  };
  out.text(1, request_id);
  out.message(5, [&] {
    write_numbers(out, counts, static_cast<uint32_t>(std::size(counts)));
    for (size_t c = 0; c < failed.size(); ++c) {  // a map: why ads failed targeting
      if (failed[c] == 0) continue;
      out.message(8, [&] {
        out.text(1, labels[c]);
        out.number(2, static_cast<uint64_t>(failed[c]));
      });
    }
  });
  out.bytes(served_by.data(), static_cast<int64_t>(served_by.size()));
  out.message(8, [&] { write_numbers(out, timings, kTimings); });
  out.bytes(ignored.data(), static_cast<int64_t>(ignored.size()));
  out.number(10, returned + reply.counts.limited < reply.counts.matched ? 1 : 0);
  out.number(11, degraded ? 1 : 0);
  out.text(12, profile);
  out.packed(2, reply.ad_ids.data(), returned * int64_t{sizeof(int64_t)});
  out.packed(3, reply.scores.data(), returned * int64_t{sizeof(float)});
}

// Writes the SIDs of one reply. `leaves` includes dead leaves; `tokens` has only live ones.
void write_sids(Writer& out, const Reply& reply, int64_t length, int64_t width,
                const int32_t* leaves, const float* scores_of_leaves, const uint32_t* tokens) {
  std::vector<float> scores;
  std::vector<uint32_t> place_of_leaf(static_cast<size_t>(width));
  for (int64_t i = 0; i < width; ++i) {
    place_of_leaf[i] = static_cast<uint32_t>(scores.size());
    if (leaves[i] != grace::exact::kNoLeaf) scores.push_back(scores_of_leaves[i]);
  }
  std::vector<uint32_t> sid_of_ad;
  for (const int32_t position : reply.positions) {
    sid_of_ad.push_back(place_of_leaf.at(position));
  }
  const auto four_bytes = [](const auto& values) {
    return 4 * static_cast<int64_t>(values.size());
  };
  out.message(4, [&] {
    out.number(1, static_cast<uint64_t>(length));
    out.packed(2, tokens, four_bytes(scores) * length);
    out.packed(3, scores.data(), four_bytes(scores));
    out.packed(4, sid_of_ad.data(), four_bytes(sid_of_ad));
  });
}

}  // namespace

// Of replies that grace_exact_match made: message i is that of row rows[i].
//   texts, sizes    [2, count]: request ids, then the fields 9 and 13 that Python has written
//   served_by       the fields 6 and 7 as bytes
//   labels          of the components, by which ads failed
//   degraded        bool [count]: whether `profile` is smaller than the one asked for
//   timings         uint32 [count, 5]: the fields of grace.v1.Timings
//   leaves, scores  [batch, width]: what grace_exact_match was given
//   first_sids      int64 [count]: of a reply with SIDs its first row of `tokens`, else -1
//   tokens          uint32 [sids, sid_length]: of the live leaves of each reply with SIDs
//   ends            int64 [count]: where each message ends in `out`
GRACE_API int32_t grace_replies_write(
    uint64_t replies_handle, int64_t count, const int32_t* rows, const char* const* texts,
    const int64_t* sizes, const char* served_by, int64_t served_by_size, const char* const* labels,
    int64_t components, const bool* degraded, const char* profile, int64_t profile_size,
    const uint32_t* timings, int64_t width, const int32_t* leaves, const float* scores,
    const int64_t* first_sids, int64_t sids, int64_t sid_length, const uint32_t* tokens,
    int64_t room, uint8_t* out, int64_t* ends) {
  return grace::guarded([&] {
    const auto& replies = *reinterpret_cast<const std::vector<Reply>*>(replies_handle);
    const auto text = [&](int64_t i) {
      return std::string_view(texts[i], static_cast<size_t>(sizes[i]));
    };
    Writer writer(out, room);
    for (int64_t i = 0; i < count; ++i) {
      const Reply& reply = replies.at(rows[i]);
      write_reply(writer, reply, text(i), {served_by, static_cast<size_t>(served_by_size)},
                  text(count + i), degraded[i], {profile, static_cast<size_t>(profile_size)},
                  timings + i * kTimings, {labels, labels + components});
      if (first_sids[i] >= 0) {
        require(first_sids[i] + reply.counts.leaves <= sids,
                "replies_write: fewer SIDs than live leaves");
        const int64_t row = rows[i] * width;
        write_sids(writer, reply, sid_length, width, leaves + row, scores + row,
                   tokens + first_sids[i] * sid_length);
      }
      ends[i] = writer.written();
    }
  });
}
