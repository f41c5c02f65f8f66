// The form `lists`: a row has the values of one set that a rule includes, groups of values, and
// those it excludes; a request has its user's values. It passes a row if it has one of the included
// values, where there are any, one of each group, and none of the excluded ones.
#include <algorithm>

#include "grace/named_ids.h"

namespace grace::forms::lists {

namespace {

// index/forms/lists.py describes the arrays.
struct AskedLists {
  uint8_t* open;
  int32_t* offsets;
  int32_t* ids;
  uint64_t* hashes;
  int64_t lengths[4];

  NamedIds known() const { return {offsets, ids, lengths[2]}; }
};

const AskedLists& lists_of(const void* asked) { return *static_cast<const AskedLists*>(asked); }

// Row r is values[offsets[r] .. offsets[r + 1]], ascending. An empty range is no list.
struct Table {
  const int64_t* offsets;
  const int32_t* values;
};

// The groups of row r are groups[r] .. groups[r + 1] of the table `grouped`.
struct Rows {
  Table include;
  Table exclude;
  const int64_t* groups;
  Table grouped;
};

bool has_any(const Ids& ids, const std::vector<uint64_t>& marks) {
  return std::any_of(ids.begin(), ids.end(),
                     [&](int32_t value) { return ((marks[value >> 6] >> (value & 63)) & 1) != 0; });
}

void prefetch_all(const Ids& ids) {
  constexpr int64_t line = kLineBytes / sizeof(int32_t);
  for (const int32_t* at = ids.first; at < ids.last; at += std::min<int64_t>(line, ids.last - at)) {
    prefetch(at);
  }
}

class Lists : public Component {
 public:
  Lists(int64_t rows, int64_t values, const Rows& of)
      : of_(of),
        values_(values),
        excludes_(of.exclude.offsets[rows] != 0),
        has_groups_(of.groups[rows] != 0) {}

  void require_valid(const void* asked, int64_t requests) const override {
    lists_of(asked).known().require_valid(requests, values_);
  }

  // Marks are a bit per value id.
  void mark(const void* asked, int64_t request, std::vector<uint64_t>& marks) const override {
    marks.resize((values_ + 63) / 64);
    for (const int32_t id : lists_of(asked).known().of(request)) {
      marks[id >> 6] |= uint64_t{1} << (id & 63);
    }
  }

  void unmark(const void* asked, int64_t request, std::vector<uint64_t>& marks) const override {
    for (const int32_t id : lists_of(asked).known().of(request)) marks[id >> 6] = 0;
  }

  void test(const void* asked, int64_t request, const std::vector<uint64_t>& marks,
            const int32_t* rows, int32_t count, bool* passes) const override {
    for (int32_t i = 0; i < count; ++i) {
      prefetch(of_.include.offsets + rows[i]);
      if (excludes_) prefetch(of_.exclude.offsets + rows[i]);
    }
    Ids include[kBlock], exclude[kBlock];
    for (int32_t i = 0; i < count; ++i) {
      include[i] = ids_of(of_.include, rows[i]);
      exclude[i] = excludes_ ? ids_of(of_.exclude, rows[i]) : Ids{};
      prefetch_all(include[i]);
      prefetch_all(exclude[i]);
    }
    const AskedLists& lists = lists_of(asked);
    const bool open = (lists.open[request] & kOpenExclude) != 0;
    const bool known = !lists.known().of(request).empty();
    for (int32_t i = 0; i < count; ++i) {
      passes[i] = (include[i].empty() || (known && has_any(include[i], marks))) &&
                  (exclude[i].empty() || (open && !(known && has_any(exclude[i], marks)))) &&
                  (!has_groups_ || has_each_group(rows[i], marks));
    }
  }

 private:
  bool has_each_group(int32_t row, const std::vector<uint64_t>& marks) const {
    for (int64_t group = of_.groups[row]; group < of_.groups[row + 1]; ++group) {
      if (!has_any(ids_of(of_.grouped, group), marks)) return false;
    }
    return true;
  }

  static Ids ids_of(const Table& table, int64_t row) {
    return {table.values + table.offsets[row], table.values + table.offsets[row + 1]};
  }

  Rows of_;
  int64_t values_;
  bool excludes_;
  bool has_groups_;
};

class UserLists : public UserForm {
 public:
  UserLists(const Texts& values, const uint64_t* hashes, int64_t most_values,
            bool missing_passes_exclude)
      : ids_(values),
        hashes_(hashes, hashes + values.count),
        most_values_(most_values),
        missing_passes_exclude_(missing_passes_exclude) {}

  void read(const Entry* const* entries, const Moment&, int64_t row,
            const void* rows) const override {
    thread_local std::vector<int32_t> known;
    thread_local std::vector<std::string_view> named, unknown;
    named.clear();
    unknown.clear();
    take_values(*entries[0], [&](std::string_view value) { named.push_back(value); });
    ids_.find(named, known, [&](std::string_view value) { unknown.push_back(value); });
    keep_distinct(unknown);
    const auto count = static_cast<int64_t>(known.size() + unknown.size());
    if (count > most_values_) {
      throw entries[0]->fault(Wrong::kDistinctValues, Field::kUserValues, count, most_values_);
    }
    const AskedLists& out = lists_of(rows);
    out.open[row] = count > 0 || missing_passes_exclude_ ? kOpenExclude : 0;
    out.known().write(row, known);
    std::transform(known.begin(), known.end(), out.hashes + out.offsets[row],
                   [&](int32_t id) { return hashes_[id]; });
  }

 private:
  ValueIds ids_;
  std::vector<uint64_t> hashes_;
  int64_t most_values_;
  bool missing_passes_exclude_;
};

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

// The arrays must outlive the handle.
GRACE_API int32_t grace_exact_add_lists(uint64_t handle, int64_t rows, int64_t values,
                                        const int64_t* include_offsets,
                                        const int32_t* include_values,
                                        const int64_t* exclude_offsets,
                                        const int32_t* exclude_values, const int64_t* groups,
                                        const int64_t* group_offsets, const int32_t* group_values) {
  return guarded([&] {
    const Table include{include_offsets, include_values}, exclude{exclude_offsets, exclude_values};
    const Rows all{include, exclude, groups, {group_offsets, group_values}};
    add_component(handle, std::make_unique<Lists>(rows, values, all));
  });
}

// hashes uint64 [values]: the Bloom queries of the values.
GRACE_API int32_t grace_users_add_lists(uint64_t handle, const char* name, int64_t values,
                                        const int64_t* offsets, const char* utf8,
                                        const uint64_t* hashes, int64_t most_values,
                                        int32_t missing_passes_exclude) {
  return guarded([&] {
    require(most_values >= 0, "users_add_lists: no such set");
    const Texts texts{values, offsets, utf8};
    add_component(
        handle, {name},
        std::make_unique<UserLists>(texts, hashes, most_values, missing_passes_exclude != 0));
  });
}

GRACE_API int32_t grace_rules_add_lists(void* table) {
  return guarded([&] { add_component(table, std::make_unique<RuleLists>()); });
}

}  // namespace grace::forms::lists
