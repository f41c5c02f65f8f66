// The one pass over a message's bytes: it checks all of them against the table of fields, and says
// where the entries of maps are and how much is in them. All readers of requests begin with it.
#pragma once

#include <string_view>
#include <vector>

#include "grace/wire.h"
#include "grace/wire_fields.h"

namespace grace::wire {

// A fault of a message. The names are parts of the message, or empty.
struct Fault {
  Wrong wrong;
  Field field = Field::kNone;
  int64_t value = 0;
  int64_t limit = 0;
  std::string_view name = {};
  std::string_view side = {};
  int64_t place = 0;
};

constexpr int64_t kFaultNumbers = 9;

// Writes the numbers from which native/wire.py makes an error; names as places in `message`.
void write_fault(const Fault& fault, const char* message, int64_t* out);

// The value of kNotFinite: 0 for NaN, else the sign of the infinity.
inline int64_t code_of(double not_finite) {
  return not_finite != not_finite ? 0 : not_finite > 0 ? 1 : -1;
}

constexpr uint32_t kEntryFields = 4;  // the most fields of the message of a map's entry

// The last entry of its name in a map.
struct Entry {
  Field map = Field::kNone;
  std::string_view of;  // the name of the entry that has it, if a map within an entry has it
  std::string_view name;
  Reader bytes;
  int64_t numbers[kEntryFields] = {};  // by field: the length of a list, or a number
  int64_t longest[kEntryFields] = {};  // by field: the bytes of the longest text in a list
  double real = 0;                     // its Double, if `number` of that field is not 0
  double not_finite = 0;               // the first number that is not
  size_t parent = 0;                   // the `place` of the entry that has it
  size_t place = 0;                    // not 0 if its message has an entry

  int64_t number(Field field) const { return numbers[row_of(field).number - 1]; }
  int64_t longest_in(Field field) const { return longest[row_of(field).number - 1]; }

  // A fault of this entry, or of a field in it.
  Fault fault(Wrong wrong, Field field, int64_t value, int64_t limit = 0, int64_t place = 0) const {
    return parent == 0 ? Fault{wrong, field, value, limit, name, {}, place}
                       : Fault{wrong, field, value, limit, of, name, place};
  }
};

inline const Entry kNoEntry;

// The entries of one map by the name that they are `of`, then by their own. Of entries of one name,
// it has the last one.
using Entries = std::vector<Entry>;

class Spans {
 public:
  // Reads the message of row `root`; with `only`, these fields of it and no others. Throws the
  // first Fault in the bytes: they are malformed, or have a field that the table does not have.
  void read(Reader message, Field root, uint64_t only = 0);

  // Throws the first Fault in the order of the table, in maps in the order of names. The settings
  // are by `Limit`, and an event has `sid_length` tokens.
  void check(const int64_t* settings, int64_t sid_length) const;

  // Of a field outside of maps: a number, or the length of a list.
  int64_t number(Field field) const { return numbers_[index_of(field)]; }
  std::string_view text(Field field) const { return texts_[index_of(field)]; }

  const Entries& entries(Field map) const { return maps_[index_of(map)]; }

 private:
  void read_message(Reader message, Field within, Entry* in);
  void read_field(Reader& message, const Row& row, uint32_t tag, Entry* in);
  void read_entry(Reader bytes, const Row& row, Entry* in);
  void drop_entries_of_replaced_ones();

  Field root_ = Field::kNone;
  uint64_t only_ = 0;
  Field outermost_ = Field::kNone;  // the field of the root that is being read
  int64_t numbers_[kFields];
  std::string_view texts_[kFields];
  Entries maps_[kFields];
  size_t places_ = 0;
};

// Calls take(message, tag) for each field of the message of an entry that the pass has read.
template <typename Take>
void each_field_of(const Entry& entry, Take&& take) {
  each_bytes(entry.bytes, 2, [&](Reader message) { each_field(message, take); });
}

// Calls take(value) for each number of a list in it.
template <uint32_t kWrittenAs, typename Take>
void each_number(const Entry& entry, Field list, Take&& take) {
  each_field_of(entry, [&](Reader& fields, uint32_t tag) {
    return take_numbers<kWrittenAs>(fields, tag, row_of(list).number, take);
  });
}

// Copies them: as many as the pass has counted.
template <typename Integer>
void copy_integers(const Entry& entry, Field list, std::vector<Integer>& integers) {
  integers.resize(static_cast<size_t>(entry.number(list)));
  Integer* next = integers.data();
  each_number<kVarint>(entry, list, [&](uint64_t each) { *next++ = static_cast<Integer>(each); });
}

template <typename Take>
void each_text(const Entry& entry, Field list, Take&& take) {
  each_bytes(entry.bytes, 2, [&](Reader message) {
    each_bytes(message, row_of(list).number, [&](Reader text) { take(text.text()); });
  });
}

}  // namespace grace::wire
