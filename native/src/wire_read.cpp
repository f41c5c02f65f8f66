// Messages by the table of fields, for native/wire.py: the check, the head, and what is in a field.
#include "grace/wire_spans.h"

namespace grace::wire {

namespace {

Field field_of(int64_t number) {
  require(0 < number && number < static_cast<int64_t>(kFields), "wire: no such field");
  return static_cast<Field>(number);
}

#define GRACE_WIRE_SETTING(name) #name "\n"
#define GRACE_WIRE_FIELD(field, within, number, kind, path, limit, unit, total) \
  path "\t" unit "\t" #limit "\n"
#define GRACE_WIRE_FAULT(name, logged, words) #name "\t" #logged "\t" words "\n"
constexpr const char kTable[] =
    "none\n" GRACE_WIRE_LIMITS(GRACE_WIRE_SETTING) "\n" GRACE_WIRE_FIELDS(GRACE_WIRE_FIELD) "\n"  //
    GRACE_WIRE_FAULTS(GRACE_WIRE_FAULT);

}  // namespace

// Returns the words of the table: the settings, and after an empty line each the fields and the
// faults; a row's words have tabs between them.
GRACE_API const char* grace_wire_table() { return kTable; }

// Checks the bytes of a message and, if there are settings, its limits.
//   settings  int64 [limits]      by Limit, or null
//   head      int64 [fields, 2]   a number; the length of a list, and what a record adds to it; how
//                                 many entries a map has, and the sum of their first numbers; where
//                                 a text begins, and its size
//   fault     int64 [kFaultNumbers]
GRACE_API int32_t grace_wire_read(const char* message, int64_t size, int64_t root,
                                  const int64_t* settings, int64_t sid_length, int64_t* head,
                                  int64_t* fault) {
  return guarded([&] {
    thread_local Spans spans;
    Fault found{Wrong::kNothing};
    try {
      spans.read(Reader(message, size), field_of(root));
      if (settings != nullptr) spans.check(settings, sid_length);
    } catch (const Fault& thrown) {
      found = thrown;
    }
    write_fault(found, message, fault);
    for (const Row& row : kRows) {
      int64_t* of_field = head + 2 * index_of(row.field);
      of_field[0] = spans.number(row.field);
      of_field[1] = 0;
      if (row.kind == Kind::kText) {
        const std::string_view text = spans.text(row.field);
        of_field[0] = text.empty() ? 0 : text.data() - message;
        of_field[1] = static_cast<int64_t>(text.size());
      }
      const Entries& entries = spans.entries(row.field);
      of_field[0] += static_cast<int64_t>(entries.size());
      for (const Entry& entry : entries) of_field[1] += entry.numbers[0];
    }
  });
}

// The integers of a list of a message that was read: as many as its head says.
GRACE_API int32_t grace_wire_integers(const char* message, int64_t size, int64_t field,
                                      int64_t count, int64_t* integers) {
  return guarded([&] {
    int64_t* const end = integers + count;
    const auto take = [&](uint64_t integer) {
      require(integers < end, "wire_integers: more integers than the message's head says");
      *integers++ = static_cast<int64_t>(integer);
    };
    each_field(Reader(message, size), [&](Reader& fields, uint32_t tag) {
      return take_numbers<kVarint>(fields, tag, row_of(field_of(field)).number, take);
    });
  });
}

// The texts of a list of a message that was read: as many as its head says.
//   spans  int64 [count, 2]   begin and size of each
GRACE_API int32_t grace_wire_texts(const char* message, int64_t size, int64_t field, int64_t count,
                                   int64_t* spans) {
  return guarded([&] {
    int64_t* const end = spans + 2 * count;
    each_bytes(Reader(message, size), row_of(field_of(field)).number, [&](Reader bytes) {
      require(spans < end, "wire_texts: more texts than the message's head says");
      *spans++ = bytes.text().data() - message;
      *spans++ = bytes.left();
    });
  });
}

// The entries of a map of a message that was read, by name: as many as its head says.
//   names     int64 [entries, 3]   begin and size of the name, and the entry's first number
//   integers  int64 [sum of these]   those of one name after the other, if each has a list of them
GRACE_API int32_t grace_wire_map(const char* message, int64_t size, int64_t field, int64_t entries,
                                 int64_t count, int64_t* names, int64_t* integers) {
  return guarded([&] {
    const Field map = field_of(field);
    Spans spans;
    spans.read(Reader(message, size), row_of(map).within, bit_of(map));
    const Entries& found = spans.entries(map);
    int64_t numbers = 0;
    for (const Entry& entry : found) numbers += entry.numbers[0];
    require(found.size() == static_cast<size_t>(entries) && numbers == count,
            "wire_map: other numbers than the message's head says");
    for (const Entry& entry : found) {
      *names++ = entry.name.empty() ? 0 : entry.name.data() - message;
      *names++ = static_cast<int64_t>(entry.name.size());
      *names++ = entry.numbers[0];
      if (row_of(map).kind == Kind::kNumberMap) continue;
      each_field_of(entry, [&](Reader& fields, uint32_t tag) {
        return take_numbers<kVarint>(
            fields, tag, 1, [&](uint64_t each) { *integers++ = static_cast<int64_t>(each); });
      });
    }
  });
}

// The bytes of a message within one that was read, whose parts are joined, which merges them.
GRACE_API int32_t grace_wire_opaque(const char* message, int64_t size, int64_t field, int64_t room,
                                    uint8_t* bytes) {
  return guarded([&] {
    Writer joined(bytes, room);
    each_bytes(Reader(message, size), row_of(field_of(field)).number,
               [&](Reader part) { joined.bytes(part.at(), part.left()); });
  });
}

}  // namespace grace::wire
