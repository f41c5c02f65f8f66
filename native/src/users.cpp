#include "grace/users.h"

#include <algorithm>

#include "grace/abi.h"
#include "grace/id_tables.h"
#include "grace/wire_request.h"
#include "grace/xxh3.h"

namespace grace::users {

using wire::Fault;
using wire::Field;
using wire::kBytes;
using wire::Reader;
using wire::tag_of;
using wire::Wrong;

namespace {

constexpr std::string_view kReserved = "*";  // index.schema.RESERVED_VALUE
constexpr int32_t kFree = -1;

// Calls take(value) for each value of an entry of `user`.
template <typename Take>
void take_values(Reader entry, Take&& take) {
  std::string_view name;
  wire::read_entry(entry, name, [&](Reader part) {
    wire::each_field(part, [&](Reader& values, uint32_t tag) {
      if (tag != tag_of(1, kBytes)) return false;
      const std::string_view value = values.bytes().text();
      if (value == kReserved) {
        throw Fault{Wrong::kReservedValue, Field::kUserValues, 0, 0, wire::name_of(entry)};
      }
      take(value);
      return true;
    });
  });
}

// The distinct ones of the values added, in the order of their first coming.
class Distinct {
 public:
  void add(std::string_view value, uint64_t hash) { all_.push_back({value, hash}); }

  void clear() { all_.clear(); }

  void keep_first() {
    const uint32_t bits = table_bits(static_cast<int64_t>(all_.size()));
    cells_.assign(size_t{1} << bits, kFree);
    size_t kept = 0;
    for (const Value& value : all_) {
      size_t at = first_cell(value.hash, bits);
      while (cells_[at] != kFree && !(all_[static_cast<size_t>(cells_[at])] == value)) {
        at = (at + 1) & (cells_.size() - 1);
      }
      if (cells_[at] != kFree) continue;
      cells_[at] = static_cast<int32_t>(kept);
      all_[kept++] = value;
    }
    all_.resize(kept);
  }

  struct Value {
    std::string_view text;
    uint64_t hash;
    bool operator==(const Value& other) const { return hash == other.hash && text == other.text; }
  };
  const std::vector<Value>& values() const { return all_; }

 private:
  std::vector<Value> all_;
  std::vector<int32_t> cells_;
};

}  // namespace

Interned::Interned(Texts texts, uint64_t seed) : texts_(texts) {
  const uint32_t bits = table_bits(texts.count);
  cells_.assign(size_t{1} << bits, kFree);
  for (int64_t id = 0; id < texts.count; ++id) {
    size_t at = first_cell(hash_text(texts[id], seed), bits);
    while (cells_[at] != kFree) at = (at + 1) & (cells_.size() - 1);
    cells_[at] = static_cast<int32_t>(id);
  }
}

int32_t Interned::find(std::string_view value, uint64_t hash) const {
  size_t at = first_cell(hash, table_bits(texts_.count));
  while (cells_[at] != kFree && texts_[cells_[at]] != value) at = (at + 1) & (cells_.size() - 1);
  return cells_[at];
}

// The entry that counts of each declared name, a null reader where there is none, and of each other
// name.
struct Users::Given {
  struct Other {
    std::string_view name;
    size_t parent;
    Reader entry;
  };
  std::vector<Reader> attributes, sets;
  wire::LastOfEachName<Other> others;
};

void Users::declare(const std::string& name, Place place) {
  require(names_.emplace(name, place).second, "users: a name is declared twice");
}

void Users::add(const std::string& name, Attribute attribute) {
  for (const auto& [value, bit] : attribute.bit_of) {
    require(bit >= 0 && bit < 64 * words_, "users: a bit is not within the row");
  }
  require(attribute.other >= 0 && attribute.other < 64 * words_ && attribute.missing >= 0 &&
              attribute.missing < 64 * words_,
          "users: a bit is not within the row");
  declare(name, {false, attributes_.size()});
  attributes_.push_back(std::move(attribute));
}

void Users::add_set(const std::string& name, Texts values, int64_t most_values) {
  require(most_values >= 0 && values.count <= INT32_MAX, "users: no such set");
  declare(name, {true, sets_.size()});
  sets_.push_back({Interned(values, seed_), most_values});
}

void Users::begin(const Rows& rows) const {
  for (size_t s = 0; s < sets_.size(); ++s) {
    const int64_t first = static_cast<int64_t>(s) * (rows.size + 1);
    rows.offsets[first] = rows.value_offsets[first] = 0;
  }
}

void Users::read(Reader request, int64_t row, const Rows& rows, wire::UnknownNames& unknown) const {
  Given given = find(request);
  uint64_t* bits = rows.bitmask + row * words_;
  std::fill_n(bits, words_, 0);
  for (size_t i = 0; i < attributes_.size(); ++i) {
    set_bits(attributes_[i], given.attributes[i], bits);
  }
  int64_t before = 0;
  for (size_t i = 0; i < sets_.size(); ++i) {
    read_set(i, before, given.sets[i], row, rows);
    before += rows.size * sets_[i].most_values;
  }
  for (const Given::Other& other : given.others.sorted()) {
    take_values(other.entry, [](std::string_view) {});
    unknown.add(Field::kOneOfUser, other.name);
  }
}

Users::Given Users::find(Reader request) const {
  Given given{std::vector<Reader>(attributes_.size()), std::vector<Reader>(sets_.size()), {}};
  wire::each_field(request, [&](Reader& fields, uint32_t tag) {
    if (tag != tag_of(wire::kUserEntry, kBytes)) return false;
    const Reader entry = fields.bytes();
    std::string_view name;
    if (!wire::read_entry(entry, name, [](Reader) {})) return true;
    const auto found = names_.find(name);
    if (found == names_.end()) {
      given.others.put({name, 0, entry});
    } else {
      const Place place = found->second;
      (place.is_set ? given.sets : given.attributes)[place.number] = entry;
    }
    return true;
  });
  return given;
}

void Users::set_bits(const Attribute& attribute, Reader entry, uint64_t* row) const {
  bool any = false;
  const auto set = [&](int64_t bit) { row[bit >> 6] |= uint64_t{1} << (bit & 63); };
  take_values(entry, [&](std::string_view value) {
    const auto found = attribute.bit_of.find(std::string(value));
    set(found == attribute.bit_of.end() ? attribute.other : found->second);
    any = true;
  });
  if (!any) set(attribute.missing);
}

void Users::read_set(size_t number, int64_t before, Reader entry, int64_t row,
                     const Rows& rows) const {
  thread_local Distinct distinct;
  distinct.clear();
  take_values(entry, [&](std::string_view value) { distinct.add(value, hash_text(value, seed_)); });
  distinct.keep_first();
  const Set& set = sets_[number];
  const auto count = static_cast<int64_t>(distinct.values().size());
  if (count > set.most_values) {
    throw Fault{Wrong::kDistinctValues, Field::kUserValues, count, set.most_values,
                wire::name_of(entry)};
  }
  const int64_t at = static_cast<int64_t>(number) * (rows.size + 1) + row;
  uint64_t* hash = rows.hashes + before + rows.offsets[at];
  int32_t* const first_id = rows.value_ids + before + rows.value_offsets[at];
  int32_t* id = first_id;
  for (const Distinct::Value& value : distinct.values()) {
    *hash++ = value.hash;
    *id = set.values.find(value.text, value.hash);
    id += *id >= 0 ? 1 : 0;
  }
  std::sort(first_id, id);
  rows.offsets[at + 1] = rows.offsets[at] + static_cast<int32_t>(count);
  rows.value_offsets[at + 1] = rows.value_offsets[at] + static_cast<int32_t>(id - first_id);
}

}  // namespace grace::users
