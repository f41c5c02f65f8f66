// A request's user, the map `user` of grace.v1.RetrieveRequest, from the request's bytes to the
// rows that index/users/user_rows.py describes.
#ifndef GRACE_USERS_H_
#define GRACE_USERS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "grace/wire_batch.h"

namespace grace::users {

// Texts side by side: text i is utf8[offsets[i] .. offsets[i + 1]].
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
  Interned(Texts texts, uint64_t seed);
  // Returns -1 if it is none of them.
  int32_t find(std::string_view value, uint64_t hash) const;

 private:
  Texts texts_;
  std::vector<int32_t> cells_;
};

struct Set {
  Interned values;
  int64_t most_values;
};

// A batch's arrays of `size` rows, not initialised. Those of sets come set after set: offsets
// [size + 1] each, hashes and ids with room for size * most_values each.
struct Rows {
  int64_t size;
  uint64_t* bitmask;
  int32_t* offsets;
  uint64_t* hashes;
  int32_t* value_offsets;
  int32_t* value_ids;
};

class Users {
 public:
  Users(int64_t words, uint64_t seed) : words_(words), seed_(seed) {}

  void add(const std::string& name, Attribute attribute);
  // The texts must outlive this.
  void add_set(const std::string& name, Texts values, int64_t most_values);

  // Before the first row: where it begins in the sets' arrays.
  void begin(const Rows& rows) const;
  // Reads one request's user into its row; the rows before it must have been read. Throws Fault.
  void read(wire::Reader request, int64_t row, const Rows& rows, wire::UnknownNames& unknown) const;

 private:
  struct Place {
    bool is_set;
    size_t number;
  };
  struct Given;

  Given find(wire::Reader request) const;
  void set_bits(const Attribute& attribute, wire::Reader entry, uint64_t* row) const;
  void read_set(size_t number, int64_t before, wire::Reader entry, int64_t row,
                const Rows& rows) const;
  void declare(const std::string& name, Place place);

  int64_t words_;
  uint64_t seed_;
  std::map<std::string, Place, std::less<>> names_;
  std::vector<Attribute> attributes_;
  std::vector<Set> sets_;
};

}  // namespace grace::users

#endif  // GRACE_USERS_H_
