#include "grace/abi.h"
#include "grace/users.h"
#include "grace/utf8.h"

namespace grace::users {

using wire::kBytes;
using wire::Reader;
using wire::require_plain;
using wire::tag_of;

namespace {

void check_entry(Reader entry, const Limits& limits, int64_t& together) {
  wire::MapEntry read = wire::map_entry(entry);
  require_plain(static_cast<int64_t>(read.name.size()) <= limits.name_bytes);
  require_plain(is_utf8(read.name));
  int64_t count = 0;
  while (!read.value.done()) {
    require_plain(read.value.tag() == tag_of(1, kBytes));
    const std::string_view value = read.value.bytes().text();
    require_plain(static_cast<int64_t>(value.size()) <= limits.value_bytes && is_utf8(value));
    ++count;
  }
  together += count;
  require_plain(count <= limits.values && together <= limits.together);
}

// Where a request's user lies in its bytes; both 0 if there is none.
struct Span {
  int64_t begin = 0;
  int64_t end = 0;
};

// Throws NotPlain as well if its entries do not lie side by side.
Span check(const uint8_t* message, int64_t size, const Limits& limits) {
  Span span;
  int64_t names = 0;
  int64_t together = 0;
  for (Reader reader(message, size); !reader.done();) {
    const int64_t at = reader.at() - message;
    const uint8_t tag = reader.tag();
    if (tag >> 3 != 4) {
      reader.skip(tag);
      continue;
    }
    require_plain(tag == tag_of(4, kBytes) && (names == 0 || span.end == at));
    check_entry(reader.bytes(), limits, together);
    require_plain(++names <= limits.names);
    if (names == 1) span.begin = at;
    span.end = reader.at() - message;
  }
  return span;
}

}  // namespace

}  // namespace grace::users

// Of the bytes of a grace.v1.RetrieveRequest: finds and checks its user, and nothing else.
//   limits  int64 [5]   those of grace::users::Limits
//   span    int64 [3]   1 if the user is plainly right, else 0; where it begins and ends
GRACE_API int32_t grace_users_check(const char* message, int64_t size, const int64_t* limits,
                                    int64_t* span) {
  return grace::guarded([&] {
    try {
      const grace::users::Span found =
          grace::users::check(reinterpret_cast<const uint8_t*>(message), size,
                              {limits[0], limits[1], limits[2], limits[3], limits[4]});
      span[0] = 1;
      span[1] = found.begin;
      span[2] = found.end;
    } catch (const grace::wire::NotPlain&) {
      span[0] = 0;
    }
  });
}
