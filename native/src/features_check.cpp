#include <cmath>

#include "grace/abi.h"
#include "grace/features.h"

namespace grace::features {

using wire::kBytes;
using wire::map_entry;
using wire::Reader;
using wire::require_plain;
using wire::tag_of;

namespace {

void check_name(std::string_view name, const Limits& limits) {
  require_plain(static_cast<int64_t>(name.size()) <= limits.name_bytes);
  for (const char c : name) require_plain(static_cast<unsigned char>(c) < 0x80);
}

void check_numbers(Reader message, const Limits& limits) {
  int64_t count = 0;
  const auto take = [&](float number) {
    require_plain(std::isfinite(number));
    ++count;
  };
  while (!message.done()) require_plain(wire::take_floats(message, message.tag(), 1, take));
  require_plain(count <= limits.values);
}

// Of one repeated integer field; false if the tag is another field's.
bool count_integers(Reader& message, uint8_t tag, int field, int64_t& count) {
  if (tag == tag_of(field, kBytes)) {
    count += wire::count_packed(message.bytes());
    return true;
  }
  return wire::take_integers(message, tag, field, [&](uint64_t) { ++count; });
}

void check_ids(Reader message, int64_t most) {
  int64_t count = 0;
  while (!message.done()) require_plain(count_integers(message, message.tag(), 1, count));
  require_plain(count <= most);
}

void check_events(Reader message, const Limits& limits, int64_t& names) {
  int64_t tokens = 0;
  int64_t times = 0;
  while (!message.done()) {
    const uint8_t tag = message.tag();
    if (count_integers(message, tag, 1, tokens) || count_integers(message, tag, 2, times)) continue;
    require_plain(tag == tag_of(3, kBytes));
    const wire::MapEntry side = map_entry(message.bytes());
    ++names;
    check_name(side.name, limits);
    check_ids(side.value, limits.events);
  }
  require_plain(tokens <= limits.events * limits.sid_length && times <= limits.events);
}

// Where a request's features lie in its bytes: from its tag, from its own first byte, to its end.
// All three 0 if there are none.
struct Span {
  int64_t tag = 0;
  int64_t begin = 0;
  int64_t end = 0;
};

Span find_features(const uint8_t* message, int64_t size) {
  Span span;
  for (Reader reader(message, size); !reader.done();) {
    const int64_t at = reader.at() - message;
    const uint8_t tag = reader.tag();
    if (tag >> 3 != 5) {
      reader.skip(tag);
      continue;
    }
    require_plain(tag == tag_of(5, kBytes) && span.end == 0);
    const Reader features = reader.bytes();
    span.tag = at;
    span.begin = features.at() - message;
    span.end = span.begin + features.left();
  }
  return span;
}

}  // namespace

void check(Reader features, const Limits& limits) {
  int64_t names = 0;
  while (!features.done()) {
    const uint8_t tag = features.tag();
    require_plain((tag & 7) == kBytes);
    const wire::MapEntry entry = map_entry(features.bytes());
    ++names;
    check_name(entry.name, limits);
    switch (tag >> 3) {
      case 1:
        check_numbers(entry.value, limits);
        break;
      case 2:
      case 3:
        check_ids(entry.value, limits.values);
        break;
      case 4:
        check_events(entry.value, limits, names);
        break;
      default:
        throw wire::NotPlain{};
    }
  }
  require_plain(names <= limits.names);
}

}  // namespace grace::features

// Of the bytes of a grace.v1.RetrieveRequest: finds and checks its features, and nothing else.
//   limits  int64 [5]   those of grace::features::Limits
//   span    int64 [4]   1 if the features are plainly right, else 0; where their tag, they
//                       themselves, and what follows them begin
GRACE_API int32_t grace_features_check(const char* message, int64_t size, const int64_t* limits,
                                       int64_t* span) {
  return grace::guarded([&] {
    const auto* bytes = reinterpret_cast<const uint8_t*>(message);
    try {
      const grace::features::Span found = grace::features::find_features(bytes, size);
      grace::features::check({bytes + found.begin, found.end - found.begin},
                             {limits[0], limits[1], limits[2], limits[3], limits[4]});
      span[0] = 1;
      span[1] = found.tag;
      span[2] = found.begin;
      span[3] = found.end;
    } catch (const grace::wire::NotPlain&) {
      span[0] = 0;
    }
  });
}
