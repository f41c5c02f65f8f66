// The form `lists`: a row has the values of one set that a rule includes, and those it excludes;
// a request has its user's values. It passes a row if it has one of the included values, where
// there are any, and none of the excluded ones.
#include <algorithm>
#include <cstdint>
#include <memory>

#include "grace/abi.h"
#include "grace/component.h"
#include "grace/id_tables.h"
#include "grace/rule_form.h"
#include "grace/user_form.h"
#include "grace/xxh3.h"

namespace grace::exact {

namespace {

// Request b has values, known or not, if offsets[b] < offsets[b + 1], and the ids of the known ones
// are ids[id_offsets[b] .. id_offsets[b + 1]].
struct AskedLists {
  const int32_t* offsets;
  const int32_t* id_offsets;
  const int32_t* ids;
};

// Row r is values[offsets[r] .. offsets[r + 1]], ascending. An empty range is no list.
struct Table {
  const int64_t* offsets;
  const int32_t* values;
};

struct List {
  const int32_t* begin;
  const int32_t* end;

  bool empty() const { return begin == end; }

  bool has_any(const std::vector<uint64_t>& marks) const {
    return std::any_of(
        begin, end, [&](int32_t value) { return ((marks[value >> 6] >> (value & 63)) & 1) != 0; });
  }

  void prefetch_all() const {
    constexpr int64_t line = kLineBytes / sizeof(int32_t);
    for (const int32_t* at = begin; at < end; at += std::min<int64_t>(line, end - at)) prefetch(at);
  }
};

const AskedLists& lists_of(const void* asked) { return *static_cast<const AskedLists*>(asked); }

class Lists : public Component {
 public:
  Lists(int64_t rows, int64_t values, Table include, Table exclude, bool missing_passes_exclude)
      : values_(values),
        include_(include),
        exclude_(exclude),
        excludes_(exclude.offsets[rows] != 0),
        missing_passes_exclude_(missing_passes_exclude) {}

  void require_valid(const void* asked, int64_t requests) const override {
    const auto& [offsets, id_offsets, ids] = lists_of(asked);
    require(id_offsets[0] >= 0, "exact_match: offsets of value ids descend");
    for (int64_t b = 0; b < requests; ++b) {
      require(id_offsets[b] <= id_offsets[b + 1], "exact_match: offsets of value ids descend");
    }
    require(std::all_of(ids + id_offsets[0], ids + id_offsets[requests],
                        [&](int32_t id) { return id >= 0 && id < values_; }),
            "exact_match: a user's value id is out of range");
  }

  // Marks are a bit per value id.
  void mark(const void* asked, int64_t request, std::vector<uint64_t>& marks) const override {
    marks.resize((values_ + 63) / 64);
    const List ids = ids_of(asked, request);
    for (const int32_t* id = ids.begin; id < ids.end; ++id) {
      marks[*id >> 6] |= uint64_t{1} << (*id & 63);
    }
  }

  void unmark(const void* asked, int64_t request, std::vector<uint64_t>& marks) const override {
    const List ids = ids_of(asked, request);
    for (const int32_t* id = ids.begin; id < ids.end; ++id) marks[*id >> 6] = 0;
  }

  void test(const void* asked, int64_t request, const std::vector<uint64_t>& marks,
            const int32_t* rows, int32_t count, bool* passes) const override {
    for (int32_t i = 0; i < count; ++i) {
      prefetch(include_.offsets + rows[i]);
      if (excludes_) prefetch(exclude_.offsets + rows[i]);
    }
    List include[kBlock], exclude[kBlock];
    for (int32_t i = 0; i < count; ++i) {
      include[i] = list(include_, rows[i]);
      exclude[i] = excludes_ ? list(exclude_, rows[i]) : List{};
      include[i].prefetch_all();
      exclude[i].prefetch_all();
    }
    const int32_t* offsets = lists_of(asked).offsets + request;
    const bool present = offsets[1] > offsets[0], known = !ids_of(asked, request).empty();
    for (int32_t i = 0; i < count; ++i) {
      passes[i] = (include[i].empty() || (known && include[i].has_any(marks))) &&
                  (exclude[i].empty() ||
                   (present ? !known || !exclude[i].has_any(marks) : missing_passes_exclude_));
    }
  }

 private:
  static List list(const Table& table, int32_t row) {
    return {table.values + table.offsets[row], table.values + table.offsets[row + 1]};
  }

  static List ids_of(const void* asked, int64_t request) {
    const auto& [offsets, id_offsets, ids] = lists_of(asked);
    return {ids + id_offsets[request], ids + id_offsets[request + 1]};
  }

  int64_t values_;
  Table include_;
  Table exclude_;
  bool excludes_;
  bool missing_passes_exclude_;
};

}  // namespace

// The arrays must outlive the handle.
GRACE_API int32_t grace_exact_add_lists(
    uint64_t handle, const int32_t* ids, int64_t stride, int64_t rows, int64_t values,
    const int64_t* include_offsets, const int32_t* include_values, const int64_t* exclude_offsets,
    const int32_t* exclude_values, int32_t missing_passes_exclude) {
  return guarded([&] {
    const Table include{include_offsets, include_values}, exclude{exclude_offsets, exclude_values};
    add_component(handle, {ids, stride,
                           std::make_unique<Lists>(rows, values, include, exclude,
                                                   missing_passes_exclude != 0)});
  });
}

}  // namespace grace::exact

namespace grace::users {

namespace {

using wire::Entry;
using wire::Field;
using wire::Wrong;

constexpr int32_t kFree = -1;

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

// Row b has values from offsets[b] on, and known ones from id_offsets[b] on; all rows have at most
// `room`. index/forms/lists.py describes the arrays.
struct AskedRows {
  int32_t* offsets;
  int32_t* id_offsets;
  int32_t* ids;
  uint64_t* hashes;
  int64_t room;
};

class UserLists : public UserForm {
 public:
  UserLists(Texts values, uint64_t seed, int64_t most_values)
      : values_(values, seed), seed_(seed), most_values_(most_values) {}

  void read(const Entry* const* entries, int64_t row, const void* rows) const override {
    const AskedRows& out = *static_cast<const AskedRows*>(rows);
    thread_local Distinct distinct;
    distinct.clear();
    take_values(*entries[0],
                [&](std::string_view value) { distinct.add(value, hash_text(value, seed_)); });
    distinct.keep_first();
    const auto count = static_cast<int64_t>(distinct.values().size());
    if (count > most_values_) {
      throw entries[0]->fault(Wrong::kDistinctValues, Field::kUserValues, count, most_values_);
    }
    if (row == 0) out.offsets[0] = out.id_offsets[0] = 0;
    require(count <= out.room - out.offsets[row], "users_read: no room for the values of a set");
    uint64_t* hash = out.hashes + out.offsets[row];
    int32_t* const first = out.ids + out.id_offsets[row];
    int32_t* known = first;
    for (const Distinct::Value& value : distinct.values()) {
      *hash++ = value.hash;
      const int32_t id = values_.find(value.text, value.hash);
      if (id >= 0) *known++ = id;
    }
    std::sort(first, known);
    out.offsets[row + 1] = static_cast<int32_t>(hash - out.hashes);
    out.id_offsets[row + 1] = static_cast<int32_t>(known - out.ids);
  }

 private:
  Interned values_;
  uint64_t seed_;
  int64_t most_values_;
};

}  // namespace

// The interned values must outlive the handle.
GRACE_API int32_t grace_users_add_lists(uint64_t handle, const char* name, uint64_t seed,
                                        int64_t values, const int64_t* offsets, const uint8_t* utf8,
                                        int64_t most_values) {
  return guarded([&] {
    require(most_values >= 0 && values <= INT32_MAX, "users_add_lists: no such set");
    const Texts texts{values, offsets, reinterpret_cast<const char*>(utf8)};
    add_component(handle, {name}, std::make_unique<UserLists>(texts, seed, most_values));
  });
}

}  // namespace grace::users

namespace grace::rules {

namespace {

// A row is how many values the rule includes, those, and those it excludes, each ascending.
class RuleLists : public RuleForm {
 public:
  RuleLists() : RuleForm(2) {}

  Refusal encode(const List* lists, std::vector<int32_t>& words) const override {
    const List &include = lists[0], &exclude = lists[1];
    const Refusal refusal = check(include, exclude, 0);
    if (refusal.fault != Fault::kNone) return refusal;
    const size_t begin = words.size();
    words.push_back(0);
    append_sorted(include, words);
    const size_t middle = words.size();
    words[begin] = static_cast<int32_t>(middle - begin - 1);
    append_sorted(exclude, words);
    const bool nothing_left =
        include.size > 0 && std::includes(words.begin() + middle, words.end(),
                                          words.begin() + begin + 1, words.begin() + middle);
    return nothing_left ? Refusal{Fault::kEmptyDifference, 1} : Refusal{};
  }

 private:
  static void append_sorted(const List& list, std::vector<int32_t>& words) {
    const size_t begin = words.size();
    words.insert(words.end(), list.codes, list.codes + list.size);
    std::sort(words.begin() + begin, words.end());
    words.erase(std::unique(words.begin() + begin, words.end()), words.end());
  }
};

}  // namespace

GRACE_API int32_t grace_rules_add_lists(void* table) {
  return guarded([&] { add_component(table, std::make_unique<RuleLists>()); });
}

}  // namespace grace::rules
