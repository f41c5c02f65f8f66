#include "grace/wire_spans.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <tuple>

namespace grace::wire {

namespace {

bool is_map(const Row& row) { return row.kind == Kind::kMap || row.kind == Kind::kNumberMap; }

// The rows of every message, by field number: 0 for a field that it does not have.
constexpr auto make_rows_by_number() {
  std::array<std::array<uint8_t, kMostNumber + 1>, kFields> rows{};
  for (const Row& row : kRows) {
    if (row.number > 0) {
      rows[index_of(row.within)][row.number] = static_cast<uint8_t>(index_of(row.field));
    }
  }
  return rows;
}
constexpr auto kRowsByNumber = make_rows_by_number();

constexpr bool table_is_sound() {
  for (const Row& row : kRows) {
    const Kind within = row_of(row.within).kind;
    if (row.number > (within == Kind::kMap ? kEntryFields : kMostNumber)) return false;
    if (row.kind == Kind::kFloats && within != Kind::kMap) return false;
    if (row.kind == Kind::kText && within == Kind::kMap) return false;
    if (row.kind == Kind::kDouble && within != Kind::kMap) return false;
    const bool is_taken_in_turn = row.kind == Kind::kTexts || row.kind == Kind::kRecords;
    if (is_taken_in_turn && row.number > kMostOfShortTag) return false;
    if (row.total != Field::kNone && row.total <= row.field) return false;
  }
  return true;
}
static_assert(table_is_sound(), "a row of wire_fields.h has no place in what the pass keeps");

bool is_written_as(Kind kind, uint32_t written_as) {
  switch (kind) {
    case Kind::kNumber:
    case Kind::kNumber32:
    case Kind::kSigned32:
    case Kind::kBool:
      return written_as == kVarint;
    case Kind::kFloat:
      return written_as == kFixed32;
    case Kind::kDouble:
      return written_as == kFixed64;
    case Kind::kIntegers:
      return written_as == kVarint || written_as == kBytes;
    case Kind::kFloats:
      return written_as == kFixed32 || written_as == kBytes;
    default:
      return written_as == kBytes;
  }
}

Fault unknown_field(uint32_t tag, Field within) {
  const uint32_t written_as = tag & 7;
  require_formed(written_as <= kFixed32 && written_as != kEndGroup);
  return {Wrong::kUnknownField, within, tag >> 3, written_as};
}

int64_t size_of(std::string_view text) { return static_cast<int64_t>(text.size()); }

// Orders entries by the name that they are `of`, or by parent while that is not known, then by
// their own. Of entries of one name, keeps the last one in the bytes.
void order(Entries& entries) {
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    if (a.parent != b.parent) return std::tie(a.of, a.parent) < std::tie(b.of, b.parent);
    const int names = a.name.compare(b.name);
    return names != 0 ? names < 0 : a.bytes.at() < b.bytes.at();
  });
  const auto same = [](const Entry& a, const Entry& b) {
    return a.parent == b.parent && a.name == b.name;
  };
  const auto last_ones = std::unique(entries.rbegin(), entries.rend(), same).base();
  entries.erase(entries.begin(), last_ones);
}

// Drops replaced entries before it takes more memory: one name may come any number of times.
void put(const Entry& entry, Entries& entries) {
  if (entries.size() == entries.capacity()) {
    order(entries);
    entries.reserve(2 * entries.size() + 1);
  }
  entries.push_back(entry);
}

}  // namespace

void write_fault(const Fault& fault, const char* message, int64_t* out) {
  *out++ = static_cast<int64_t>(fault.wrong);
  *out++ = static_cast<int64_t>(fault.field);
  for (const std::string_view name : {fault.name, fault.side}) {
    *out++ = name.empty() ? 0 : name.data() - message;
    *out++ = size_of(name);
  }
  for (const int64_t number : {fault.value, fault.limit, fault.place}) *out++ = number;
}

void Spans::read(Reader message, Field root, uint64_t only) {
  root_ = outermost_ = root;
  only_ = only;
  std::fill_n(numbers_, kFields, 0);
  std::fill_n(texts_, kFields, std::string_view());
  for (Entries& map : maps_) map.clear();
  places_ = 0;
  try {
    read_message(message, root, nullptr);
  } catch (const Malformed&) {
    throw Fault{Wrong::kMalformed, root};
  }
  for (Entries& map : maps_) order(map);
  if (places_ > 0) drop_entries_of_replaced_ones();
}

void Spans::read_message(Reader message, Field within, Entry* in) {
  while (!message.done()) {
    const uint32_t tag = message.tag();
    const uint32_t number = tag >> 3;
    const Row& row = kRows[number <= kMostNumber ? kRowsByNumber[index_of(within)][number] : 0];
    if (within == root_) {
      if (only_ != 0 && (only_ & bit_of(row.field)) == 0) {
        message.skip(tag);
        continue;
      }
      outermost_ = row.field;
    }
    if (row.field == Field::kNone || !is_written_as(row.kind, tag & 7)) {
      throw unknown_field(tag, within == root_ ? root_ : outermost_);
    }
    read_field(message, row, tag, in);
  }
}

void Spans::read_field(Reader& message, const Row& row, uint32_t tag, Entry* in) {
  int64_t& number = in ? in->numbers[row.number - 1] : numbers_[index_of(row.field)];
  switch (row.kind) {
    case Kind::kMessage:
      return read_message(message.bytes(), row.field, in);
    case Kind::kMap:
    case Kind::kNumberMap:
      return read_entry(message.bytes(), row, in);
    case Kind::kRecords:
      do {
        ++number;
        read_message(message.bytes(), row.field, nullptr);
      } while (message.take_tag(tag));
      return;
    case Kind::kOpaque:
      number += message.bytes().left();
      return;
    case Kind::kText:
      texts_[index_of(row.field)] = message.utf8();
      return;
    case Kind::kTexts:
      do {
        ++number;
        const int64_t size = size_of(message.utf8());
        if (in) in->longest[row.number - 1] = std::max(in->longest[row.number - 1], size);
      } while (message.take_tag(tag));
      return;
    case Kind::kNumber:
      number = static_cast<int64_t>(message.varint());
      return;
    case Kind::kNumber32:
      number = static_cast<uint32_t>(message.varint());
      return;
    case Kind::kSigned32:
      number = static_cast<int32_t>(message.varint());
      return;
    case Kind::kBool:
      number = message.varint() != 0;
      return;
    case Kind::kFloat:
      message.fixed32();
      return;
    case Kind::kDouble:
      number = 1;
      in->real = message.fixed64();
      in->not_finite = std::isfinite(in->real) ? 0 : in->real;
      return;
    case Kind::kIntegers:
      if ((tag & 7) == kBytes) {
        number += count_packed(message.bytes());
      } else {
        message.varint();
        ++number;
      }
      return;
    case Kind::kFloats:
      take_numbers<kFixed32>(message, tag, row.number, [&](float value) {
        ++number;
        if (!std::isfinite(value) && in->not_finite == 0) in->not_finite = value;
      });
      return;
    case Kind::kTotal:
      return;
  }
}

// An entry has its name as field 1 and its value as field 2: a message, maybe in several parts, or
// a number.
void Spans::read_entry(Reader bytes, const Row& row, Entry* in) {
  Entry entry;
  entry.map = row.field;
  entry.bytes = bytes;
  if (in != nullptr) {
    if (in->place == 0) in->place = ++places_;
    entry.parent = in->place;
  }
  while (!bytes.done()) {
    const uint32_t tag = bytes.tag();
    if (tag == tag_of(1, kBytes)) {
      entry.name = bytes.utf8();
    } else if (tag == tag_of(2, kBytes) && row.kind == Kind::kMap) {
      read_message(bytes.bytes(), row.field, &entry);
    } else if (tag == tag_of(2, kVarint) && row.kind == Kind::kNumberMap) {
      entry.numbers[0] = static_cast<uint32_t>(bytes.varint());
    } else {
      throw unknown_field(tag, outermost_);
    }
  }
  put(entry, maps_[index_of(row.field)]);
}

// An entry within an entry that a later one of the same name replaced is gone with it.
void Spans::drop_entries_of_replaced_ones() {
  std::vector<std::optional<std::string_view>> names(places_ + 1);
  for (const Entries& map : maps_) {
    for (const Entry& entry : map) names[entry.place] = entry.name;
  }
  for (Entries& map : maps_) {
    if (map.empty() || map.front().parent == 0) continue;
    const auto gone = [&](const Entry& entry) { return !names[entry.parent].has_value(); };
    map.erase(std::remove_if(map.begin(), map.end(), gone), map.end());
    for (Entry& entry : map) entry.of = *names[entry.parent];
    order(map);
  }
}

void Spans::check(const int64_t* settings, int64_t sid_length) const {
  const int64_t value_bytes = settings[index_of(Limit::value_bytes)];
  int64_t totals[kFields] = {};
  for (const Row& row : kRows) {
    const int64_t most = settings[index_of(row.limit)];
    const auto check = [&](int64_t value, const Entry& entry) {
      totals[index_of(row.total)] += value;
      if (row.limit != Limit::none && value > most) {
        throw entry.fault(Wrong::kTooMany, row.field, value, most);
      }
      for (const Bound& bound : kBounds) {
        if (bound.field == row.field && (value < bound.least || value > bound.most)) {
          throw entry.fault(Wrong::kOutOfBounds, row.field, value, bound.most, bound.least);
        }
      }
    };
    if (row_of(row.within).kind == Kind::kMap && !is_map(row)) {
      for (const Entry& entry : entries(row.within)) {
        const int64_t of_one = row.field == Field::kSids ? sid_length : 1;
        check((entry.number(row.field) + of_one - 1) / of_one, entry);
        if (row.kind == Kind::kTexts && entry.longest_in(row.field) > value_bytes) {
          throw entry.fault(Wrong::kLongValue, row.field, entry.longest_in(row.field), value_bytes);
        }
        const bool is_real = row.kind == Kind::kFloats || row.kind == Kind::kDouble;
        if (is_real && entry.not_finite != 0) {
          throw entry.fault(Wrong::kNotFinite, row.field, code_of(entry.not_finite));
        }
      }
    } else if (is_map(row)) {
      check(static_cast<int64_t>(entries(row.field).size()), {});
      for (const Entry& entry : entries(row.field)) {
        const int64_t size = size_of(entry.name);
        if (size > value_bytes) {
          throw Fault{Wrong::kLongName, row.field, size, value_bytes, entry.of};
        }
      }
    } else if (row.kind == Kind::kText) {
      check(size_of(text(row.field)), {});
    } else {
      check(row.kind == Kind::kTotal ? totals[index_of(row.field)] : number(row.field), {});
    }
  }
}

}  // namespace grace::wire
