// How a form of component reads what requests ask: from the entries of maps to rows of arrays.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "grace/wire_spans.h"

namespace grace::users {

// Texts in one array: text i is utf8[offsets[i] .. offsets[i + 1]].
struct Texts {
  int64_t count;
  const int64_t* offsets;
  const char* utf8;

  std::string_view operator[](int64_t i) const {
    return {utf8 + offsets[i], static_cast<size_t>(offsets[i + 1] - offsets[i])};
  }
};

// When a user asks: milliseconds since 1970, and what the user's local time is ahead of UTC.
struct Moment {
  int64_t at;
  int64_t utc_offset_minutes;
};

class UserForm {
 public:
  virtual ~UserForm() = default;

  // Writes row `row` of a form's arrays, after all rows before it. It may be written again.
  // There is an entry for each name, kNoEntry where the request has none. Throws wire::Fault.
  virtual void read(const wire::Entry* const* entries, const Moment& moment, int64_t row,
                    const void* rows) const = 0;
};

// Gives the reader of this handle its next component, which requests ask by these names of a map.
void add_component(uint64_t handle, const std::vector<std::string>& names,
                   std::unique_ptr<const UserForm> form, wire::Field map = wire::Field::kUser);

constexpr std::string_view kReserved = "*";  // index.schema.RESERVED_VALUE

// Calls take(value) for each value of a list of an entry. Throws Fault.
template <typename Take>
void take_texts(const wire::Entry& entry, wire::Field list, Take&& take) {
  wire::each_text(entry, list, [&](std::string_view value) {
    if (value == kReserved) throw entry.fault(wire::Wrong::kReservedValue, list, 0);
    take(value);
  });
}

// Calls take(value) for each value of an entry of `user` whose name takes values. Throws Fault.
template <typename Take>
void take_values(const wire::Entry& entry, Take&& take) {
  if (entry.number(wire::Field::kUserNumber) != 0) {
    throw entry.fault(wire::Wrong::kTakesValues, wire::Field::kUserNumber, 0);
  }
  take_texts(entry, wire::Field::kUserValues, take);
}

}  // namespace grace::users
