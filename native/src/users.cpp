// Reads requests' users, the map `user` of grace.v1.RetrieveRequest, from the bytes into the rows
// that index/users/user_rows.py describes. A handle holds a schema; a call reads a batch.
#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "grace/abi.h"
#include "grace/id_tables.h"
#include "grace/wire_batch.h"
#include "grace/xxh3.h"

namespace {

using grace::first_cell;
using grace::hash_text;
using grace::require;
using grace::table_bits;
using grace::wire::Entry;
using grace::wire::Field;
using grace::wire::kNoEntry;
using grace::wire::Spans;
using grace::wire::UnknownNames;
using grace::wire::Wrong;

constexpr std::string_view kReserved = "*";  // index.schema.RESERVED_VALUE
constexpr int32_t kFree = -1;

// Texts in one array: text i is utf8[offsets[i] .. offsets[i + 1]].
struct Texts {
  int64_t count;
  const int64_t* offsets;
  const char* utf8;

  std::string_view operator[](int64_t i) const {
    return {utf8 + offsets[i], static_cast<size_t>(offsets[i + 1] - offsets[i])};
  }
};

// An attribute's bits: one for each listed value, and one for any other.
struct Attribute {
  std::unordered_map<std::string, int64_t> bit_of;
  int64_t other;
  int64_t missing;
};

// Finds a value's id by its hash.
class Interned {
 public:
  Interned(Texts texts, uint64_t seed) : texts_(texts) {
    const uint32_t bits = table_bits(texts.count);
    cells_.assign(size_t{1} << bits, kFree);
    for (int64_t id = 0; id < texts.count; ++id) {
      size_t at = first_cell(hash_text(texts[id], seed), bits);
      while (cells_[at] != kFree) at = (at + 1) & (cells_.size() - 1);
      cells_[at] = static_cast<int32_t>(id);
    }
  }

  // Returns the value's id, or -1 if it has none.
  int32_t find(std::string_view value, uint64_t hash) const {
    size_t at = first_cell(hash, table_bits(texts_.count));
    while (cells_[at] != kFree && texts_[cells_[at]] != value) at = (at + 1) & (cells_.size() - 1);
    return cells_[at];
  }

 private:
  Texts texts_;
  std::vector<int32_t> cells_;
};

struct Set {
  Interned values;
  int64_t most_values;
};

// A batch's arrays of `size` rows, not initialised. The arrays of sets are set by set: for each
// set, offsets has size + 1 numbers, and hashes and ids follow those of the set before it. All
// requests together have at most `room` values.
struct Rows {
  int64_t size;
  uint64_t* bitmask;
  int32_t* offsets;
  uint64_t* hashes;
  int32_t* value_offsets;
  int32_t* value_ids;
  int64_t room;
};

// The values of one set, collected until all requests have been read.
struct SetValues {
  std::vector<uint64_t> hashes;
  std::vector<int32_t> ids;
};

// Calls take(value) for each value of an entry of `user`. Throws Fault.
template <typename Take>
void take_values(const Entry& entry, Take&& take) {
  grace::wire::each_text(entry, Field::kUserValues, [&](std::string_view value) {
    if (value == kReserved) throw entry.fault(Wrong::kReservedValue, Field::kUserValues, 0);
    take(value);
  });
}

// The distinct ones of the values added, in the order of their first coming.
class Distinct {
 public:
  struct Value {
    std::string_view text;
    uint64_t hash;
    bool operator==(const Value& other) const { return hash == other.hash && text == other.text; }
  };

  void add(std::string_view value, uint64_t hash) { all_.push_back({value, hash}); }
  void clear() { all_.clear(); }
  const std::vector<Value>& values() const { return all_; }

  void keep_first() {
    const uint32_t bits = table_bits(static_cast<int64_t>(all_.size()));
    cells_.assign(size_t{1} << bits, kFree);
    size_t kept = 0;
    for (const Value& value : all_) {
      size_t at = first_cell(value.hash, bits);
      while (cells_[at] != kFree && !(all_[cells_[at]] == value)) {
        at = (at + 1) & (cells_.size() - 1);
      }
      if (cells_[at] != kFree) continue;
      cells_[at] = static_cast<int32_t>(kept);
      all_[kept++] = value;
    }
    all_.resize(kept);
  }

 private:
  std::vector<Value> all_;
  std::vector<int32_t> cells_;
};

class Users {
 public:
  Users(int64_t words, uint64_t seed) : words_(words), seed_(seed) {}

  void add(const std::string& name, Attribute attribute) {
    const auto require_inside = [&](int64_t bit) {
      require(bit >= 0 && bit < 64 * words_, "users: a bit is not within the row");
    };
    for (const auto& [value, bit] : attribute.bit_of) require_inside(bit);
    require_inside(attribute.other);
    require_inside(attribute.missing);
    declare(name, {false, attributes_.size()});
    attributes_.push_back(std::move(attribute));
  }

  // The texts must outlive this.
  void add_set(const std::string& name, Texts values, int64_t most_values) {
    require(most_values >= 0 && values.count <= INT32_MAX, "users: no such set");
    declare(name, {true, sets_.size()});
    sets_.push_back({Interned(values, seed_), most_values});
  }

  // Call it before the first row; it writes where that row begins in the sets' arrays.
  std::vector<SetValues> begin(const Rows& rows) const {
    for (size_t s = 0; s < sets_.size(); ++s) {
      const int64_t first = static_cast<int64_t>(s) * (rows.size + 1);
      rows.offsets[first] = rows.value_offsets[first] = 0;
    }
    return std::vector<SetValues>(sets_.size());
  }

  // Copies the collected values into the rows. Call it after the last row.
  void finish(const Rows& rows, const std::vector<SetValues>& values) const {
    uint64_t* hash = rows.hashes;
    int32_t* id = rows.value_ids;
    for (const SetValues& set : values) {
      require(static_cast<int64_t>(set.hashes.size()) <= rows.room - (hash - rows.hashes),
              "users: no room for the sets' values");
      hash = std::copy(set.hashes.begin(), set.hashes.end(), hash);
      id = std::copy(set.ids.begin(), set.ids.end(), id);
    }
  }

  // Reads one request's user into its row, after all rows before it. Throws Fault: that of a
  // declared name comes first.
  void read(const Spans& request, int64_t row, const Rows& rows, std::vector<SetValues>& values,
            UnknownNames& unknown) const {
    std::vector<const Entry*> attributes(attributes_.size(), &kNoEntry);
    std::vector<const Entry*> sets(sets_.size(), &kNoEntry), others;
    for (const Entry& entry : request.entries(Field::kUser)) {
      const auto found = names_.find(entry.name);
      if (found == names_.end()) {
        others.push_back(&entry);
      } else {
        (found->second.is_set ? sets : attributes)[found->second.number] = &entry;
      }
    }
    uint64_t* bits = rows.bitmask + row * words_;
    std::fill_n(bits, words_, 0);
    for (size_t i = 0; i < attributes_.size(); ++i) set_bits(attributes_[i], *attributes[i], bits);
    for (size_t i = 0; i < sets_.size(); ++i) read_set(i, *sets[i], row, rows, values[i]);
    std::sort(others.begin(), others.end(), grace::wire::comes_before);
    for (const Entry* other : others) {
      take_values(*other, [](std::string_view) {});
      unknown.add(*other);
    }
  }

 private:
  struct Place {
    bool is_set;
    size_t number;
  };

  void declare(const std::string& name, Place place) {
    require(names_.emplace(name, place).second, "users: a name is declared twice");
  }

  static void set_bits(const Attribute& attribute, const Entry& entry, uint64_t* row) {
    bool any = false;
    const auto set = [&](int64_t bit) { row[bit >> 6] |= uint64_t{1} << (bit & 63); };
    take_values(entry, [&](std::string_view value) {
      const auto found = attribute.bit_of.find(std::string(value));
      set(found == attribute.bit_of.end() ? attribute.other : found->second);
      any = true;
    });
    if (!any) set(attribute.missing);
  }

  void read_set(size_t number, const Entry& entry, int64_t row, const Rows& rows,
                SetValues& values) const {
    thread_local Distinct distinct;
    distinct.clear();
    take_values(entry,
                [&](std::string_view value) { distinct.add(value, hash_text(value, seed_)); });
    distinct.keep_first();
    const Set& set = sets_[number];
    const auto count = static_cast<int64_t>(distinct.values().size());
    if (count > set.most_values) {
      throw entry.fault(Wrong::kDistinctValues, Field::kUserValues, count, set.most_values);
    }
    const int64_t at = static_cast<int64_t>(number) * (rows.size + 1) + row;
    // A request with a fault in a later set is read again, as an empty one: drop its values.
    values.hashes.resize(rows.offsets[at]);
    values.ids.resize(rows.value_offsets[at]);
    for (const Distinct::Value& value : distinct.values()) {
      values.hashes.push_back(value.hash);
      const int32_t id = set.values.find(value.text, value.hash);
      if (id >= 0) values.ids.push_back(id);
    }
    std::sort(values.ids.begin() + rows.value_offsets[at], values.ids.end());
    rows.offsets[at + 1] = static_cast<int32_t>(values.hashes.size());
    rows.value_offsets[at + 1] = static_cast<int32_t>(values.ids.size());
  }

  int64_t words_;
  uint64_t seed_;
  std::map<std::string, Place, std::less<>> names_;
  std::vector<Attribute> attributes_;
  std::vector<Set> sets_;
};

Users& users_of(uint64_t handle) { return *reinterpret_cast<Users*>(handle); }

}  // namespace

// A bitmask row has `words` words. Add the attributes, and the sets in the schema's order.
GRACE_API int32_t grace_users_open(int64_t words, uint64_t seed, uint64_t* handle) {
  return grace::guarded([&] {
    require(words > 0, "users_open: a row without words");
    *handle = reinterpret_cast<uint64_t>(std::make_unique<Users>(words, seed).release());
  });
}

// Value i has bit first_bit + i, and any other value the bit after those. A user without a value
// has the bit `missing`.
GRACE_API int32_t grace_users_add_attribute(uint64_t handle, const char* name, int64_t first_bit,
                                            int64_t values, const int64_t* offsets,
                                            const uint8_t* utf8, int64_t missing) {
  return grace::guarded([&] {
    const Texts texts{values, offsets, reinterpret_cast<const char*>(utf8)};
    Attribute attribute{{}, first_bit + values, missing};
    for (int64_t i = 0; i < values; ++i) {
      attribute.bit_of.emplace(std::string(texts[i]), first_bit + i);
    }
    users_of(handle).add(name, std::move(attribute));
  });
}

// The interned values must outlive the handle.
GRACE_API int32_t grace_users_add_set(uint64_t handle, const char* name, int64_t values,
                                      const int64_t* offsets, const uint8_t* utf8,
                                      int64_t most_values) {
  return grace::guarded([&] {
    users_of(handle).add_set(name, {values, offsets, reinterpret_cast<const char*>(utf8)},
                             most_values);
  });
}

GRACE_API int32_t grace_users_close(uint64_t handle) {
  return grace::guarded([&] { delete &users_of(handle); });
}

// Each message is a grace.v1.RetrieveRequest. grace::wire::Batch describes the arrays of faults and
// unknown names. The sets' arrays are those of Rows; bitmask is uint64 [size, words].
GRACE_API int32_t grace_users_read(uint64_t handle, int64_t requests, int64_t size,
                                   const char* const* messages, const int64_t* sizes,
                                   uint64_t* bitmask, int32_t* offsets, uint64_t* hashes,
                                   int32_t* value_offsets, int32_t* value_ids, int64_t room,
                                   int64_t* faults, int64_t unknown_room, int64_t* unknown,
                                   int64_t* unknown_ends) {
  return grace::guarded([&] {
    const Users& users = users_of(handle);
    const Rows rows{size, bitmask, offsets, hashes, value_offsets, value_ids, room};
    std::vector<SetValues> values = users.begin(rows);
    grace::Workers alone(1, "");  // a row's values follow those of the row before it
    grace::wire::read_batch(
        {requests, size, messages, sizes, faults, unknown_room, unknown, unknown_ends},
        Field::kUser, alone, [&](const Spans& request, int64_t row, UnknownNames& names) {
          users.read(request, row, rows, values, names);
        });
    users.finish(rows, values);
  });
}
