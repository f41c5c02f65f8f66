// The form `lists`: a row has the values of one set that a rule includes, groups of values, and
// those it excludes; a request has its user's values. It passes a row if it has one of the included
// values, where there are any, one of each group, and none of the excluded ones.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <unordered_map>

#include "grace/abi.h"
#include "grace/component.h"
#include "grace/distinct.h"
#include "grace/rule_form.h"
#include "grace/user_form.h"

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
  // The groups of row r are groups[r] .. groups[r + 1] of the table `grouped`.
  Lists(int64_t rows, int64_t values, Table include, Table exclude, const int64_t* groups,
        Table grouped, bool missing_passes_exclude)
      : values_(values),
        include_(include),
        exclude_(exclude),
        groups_(groups),
        grouped_(grouped),
        excludes_(exclude.offsets[rows] != 0),
        has_groups_(groups[rows] != 0),
        missing_passes_exclude_(missing_passes_exclude) {}

  void require_valid(const void* asked, int64_t requests) const override {
    const auto& [offsets, id_offsets, ids] = lists_of(asked);
    require_offsets(id_offsets, requests, "exact_match: offsets of value ids descend");
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
                   (present ? !known || !exclude[i].has_any(marks) : missing_passes_exclude_)) &&
                  (!has_groups_ || has_each_group(rows[i], marks));
    }
  }

 private:
  bool has_each_group(int32_t row, const std::vector<uint64_t>& marks) const {
    for (int64_t group = groups_[row]; group < groups_[row + 1]; ++group) {
      if (!list(grouped_, group).has_any(marks)) return false;
    }
    return true;
  }

  static List list(const Table& table, int64_t row) {
    return {table.values + table.offsets[row], table.values + table.offsets[row + 1]};
  }

  static List ids_of(const void* asked, int64_t request) {
    const auto& [offsets, id_offsets, ids] = lists_of(asked);
    return {ids + id_offsets[request], ids + id_offsets[request + 1]};
  }

  int64_t values_;
  Table include_;
  Table exclude_;
  const int64_t* groups_;
  Table grouped_;
  bool excludes_;
  bool has_groups_;
  bool missing_passes_exclude_;
};

}  // namespace

// The arrays must outlive the handle.
GRACE_API int32_t grace_exact_add_lists(
    uint64_t handle, const int32_t* ids, int64_t stride, int64_t rows, int64_t values,
    const int64_t* include_offsets, const int32_t* include_values, const int64_t* exclude_offsets,
    const int32_t* exclude_values, const int64_t* groups, const int64_t* group_offsets,
    const int32_t* group_values, int32_t missing_passes_exclude) {
  return guarded([&] {
    const Table include{include_offsets, include_values}, exclude{exclude_offsets, exclude_values};
    const Table grouped{group_offsets, group_values};
    add_component(handle, {ids, stride,
                           std::make_unique<Lists>(rows, values, include, exclude, groups, grouped,
                                                   missing_passes_exclude != 0)});
  });
}

}  // namespace grace::exact

namespace grace::users {

namespace {

using wire::Entry;
using wire::Field;
using wire::Wrong;

// Row b has values from offsets[b] on, and known ones from id_offsets[b] on; all rows together
// have at most `room` known ones. index/forms/lists.py describes the arrays.
struct AskedRows {
  int32_t* offsets;
  int32_t* id_offsets;
  int32_t* ids;
  uint64_t* hashes;
  int64_t room;
};

class UserLists : public UserForm {
 public:
  UserLists(Texts values, const uint64_t* hashes, int64_t most_values)
      : hashes_(hashes, hashes + values.count), most_values_(most_values) {
    id_of_.reserve(values.count);
    for (int64_t id = 0; id < values.count; ++id) id_of_[values[id]] = static_cast<int32_t>(id);
  }

  void read(const Entry* const* entries, const Moment&, int64_t row,
            const void* rows) const override {
    const AskedRows& out = *static_cast<const AskedRows*>(rows);
    thread_local std::vector<int32_t> ids;
    thread_local std::vector<std::string_view> unknown;
    ids.clear();
    unknown.clear();
    take_values(*entries[0], [&](std::string_view value) {
      const auto known = id_of_.find(value);
      if (known == id_of_.end()) {
        unknown.push_back(value);
      } else {
        ids.push_back(known->second);
      }
    });
    keep_distinct(ids);
    keep_distinct(unknown);
    const auto known = static_cast<int64_t>(ids.size());
    const auto count = known + static_cast<int64_t>(unknown.size());
    if (count > most_values_) {
      throw entries[0]->fault(Wrong::kDistinctValues, Field::kUserValues, count, most_values_);
    }
    if (row == 0) out.offsets[0] = out.id_offsets[0] = 0;
    const int32_t first = out.id_offsets[row];
    require(known <= out.room - first, "users_read: no room for the values of a set");
    std::copy(ids.begin(), ids.end(), out.ids + first);
    std::transform(ids.begin(), ids.end(), out.hashes + first,
                   [&](int32_t id) { return hashes_[id]; });
    out.offsets[row + 1] = out.offsets[row] + static_cast<int32_t>(count);
    out.id_offsets[row + 1] = first + static_cast<int32_t>(known);
  }

 private:
  std::unordered_map<std::string_view, int32_t> id_of_;
  std::vector<uint64_t> hashes_;
  int64_t most_values_;
};

}  // namespace

// hashes uint64 [values]: the Bloom queries of the values, whose texts must outlive the handle.
GRACE_API int32_t grace_users_add_lists(uint64_t handle, const char* name, int64_t values,
                                        const int64_t* offsets, const uint8_t* utf8,
                                        const uint64_t* hashes, int64_t most_values) {
  return guarded([&] {
    require(most_values >= 0 && values <= INT32_MAX, "users_add_lists: no such set");
    const Texts texts{values, offsets, reinterpret_cast<const char*>(utf8)};
    add_component(handle, {name}, std::make_unique<UserLists>(texts, hashes, most_values));
  });
}

}  // namespace grace::users

namespace grace::rules {

namespace {

// A row is how many values the rule includes, excludes, and how many groups it has; those values,
// each list ascending; and of each group its size and values, the groups in ascending order. The
// third column has groups: a size and codes for each.
class RuleLists : public RuleForm {
 public:
  RuleLists() : RuleForm(3) {}

  Refusal encode(const List* lists, std::vector<int32_t>& words) const override {
    const List &include = lists[0], &exclude = lists[1];
    const Refusal refusal = check(include, exclude, 0);
    if (refusal.fault != Fault::kNone) return refusal;
    thread_local Codes included, excluded;  // so that they keep their memory
    sort_into(included, include);
    sort_into(excluded, exclude);
    if (!included.empty() && leaves_nothing(excluded, included)) {
      return {Fault::kEmptyDifference, 1};
    }
    std::vector<Codes> groups;
    for (const int32_t* at = lists[2].codes; at < lists[2].codes + lists[2].size; at += *at + 1) {
      const List group{at + 1, *at, true};
      const Refusal of_group = check(group, {}, 2);
      if (of_group.fault != Fault::kNone) return of_group;
      sort_into(groups.emplace_back(), group);
      if (leaves_nothing(excluded, groups.back())) return {Fault::kEmptyDifference, 1};
    }
    keep_distinct(groups);
    for (const size_t size : {included.size(), excluded.size(), groups.size()}) {
      words.push_back(static_cast<int32_t>(size));
    }
    words.insert(words.end(), included.begin(), included.end());
    words.insert(words.end(), excluded.begin(), excluded.end());
    for (const Codes& group : groups) {
      words.push_back(static_cast<int32_t>(group.size()));
      words.insert(words.end(), group.begin(), group.end());
    }
    return {};
  }

 private:
  using Codes = std::vector<int32_t>;

  static void sort_into(Codes& codes, const List& list) {
    codes.assign(list.codes, list.codes + list.size);
    keep_distinct(codes);
  }

  static bool leaves_nothing(const Codes& excluded, const Codes& included) {
    return std::includes(excluded.begin(), excluded.end(), included.begin(), included.end());
  }
};

}  // namespace

GRACE_API int32_t grace_rules_add_lists(void* table) {
  return guarded([&] { add_component(table, std::make_unique<RuleLists>()); });
}

}  // namespace grace::rules
