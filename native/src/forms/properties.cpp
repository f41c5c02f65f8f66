// The form `properties`: a row has the values of an ad, and a request says which it wants: it
// passes a row with one of some values, and with none of others. index/forms/properties.py
// describes what requests ask.
#include <algorithm>

#include "grace/named_ids.h"

namespace grace::forms::properties {

namespace {

struct AskedFilters {
  uint8_t* open;
  int32_t* any_offsets;
  int32_t* any_ids;
  int32_t* none_offsets;
  int32_t* none_ids;
  int64_t lengths[5];

  NamedIds any() const { return {any_offsets, any_ids, lengths[2]}; }
  NamedIds none() const { return {none_offsets, none_ids, lengths[4]}; }
};

const AskedFilters& filters_of(const void* asked) {
  return *static_cast<const AskedFilters*>(asked);
}

// Row r is values[offsets[r] .. offsets[r + 1]].
class Properties : public Component {
 public:
  Properties(int64_t values, const int64_t* offsets, const int32_t* ids)
      : values_(values), offsets_(offsets), ids_(ids) {}

  void require_valid(const void* asked, int64_t requests) const override {
    filters_of(asked).any().require_valid(requests, values_);
    filters_of(asked).none().require_valid(requests, values_);
  }

  // Of each 64 values, the bits of `any_of`, then those of `none_of`.
  void mark(const void* asked, int64_t request, std::vector<uint64_t>& marks) const override {
    marks.resize(2 * ((values_ + 63) / 64));
    each_id(asked, request, [&](int32_t id, int32_t of_none) {
      marks[2 * (id >> 6) + of_none] |= uint64_t{1} << (id & 63);
    });
  }

  void unmark(const void* asked, int64_t request, std::vector<uint64_t>& marks) const override {
    each_id(asked, request,
            [&](int32_t id, int32_t of_none) { marks[2 * (id >> 6) + of_none] = 0; });
  }

  void test(const void* asked, int64_t request, const std::vector<uint64_t>& marks,
            const int32_t* rows, int32_t count, bool* passes) const override {
    const AskedFilters& filters = filters_of(asked);
    const bool open = (filters.open[request] & kOpenInclude) != 0;
    const bool bare_passes = (filters.open[request] & kOpenExclude) != 0;
    if (open && bare_passes && filters.none().of(request).empty()) {
      std::fill_n(passes, count, true);
      return;
    }
    for (int32_t i = 0; i < count; ++i) prefetch(offsets_ + rows[i]);
    for (int32_t i = 0; i < count; ++i) prefetch(ids_ + offsets_[rows[i]]);
    for (int32_t i = 0; i < count; ++i) {
      const int32_t *begin = ids_ + offsets_[rows[i]], *end = ids_ + offsets_[rows[i] + 1];
      bool wanted = open, unwanted = false;
      for (const int32_t* id = begin; id < end; ++id) {
        const uint64_t* word = marks.data() + 2 * (*id >> 6);
        wanted |= (word[0] >> (*id & 63) & 1) != 0;
        unwanted |= (word[1] >> (*id & 63) & 1) != 0;
      }
      passes[i] = begin == end ? bare_passes : wanted && !unwanted;
    }
  }

 private:
  template <typename Take>
  static void each_id(const void* asked, int64_t request, Take&& take) {
    const AskedFilters& filters = filters_of(asked);
    for (const int32_t of_none : {0, 1}) {
      const NamedIds named = of_none != 0 ? filters.none() : filters.any();
      for (const int32_t id : named.of(request)) take(id, of_none);
    }
  }

  int64_t values_;
  const int64_t* offsets_;
  const int32_t* ids_;
};

class UserFilters : public UserForm {
 public:
  explicit UserFilters(const Texts& values) : ids_(values) {}

  void read(const Entry* const* entries, const Moment&, int64_t row,
            const void* rows) const override {
    const AskedFilters& out = filters_of(rows);
    const Entry& entry = *entries[0];
    enum Unknown : int64_t { kUnspecified, kPasses };
    const bool any = entry.number(Field::kFilterAnyOf) != 0;
    const int64_t unknown = entry.number(Field::kFilterUnknown);
    const bool bare_passes = unknown == kPasses || (unknown == kUnspecified && !any);
    out.open[row] =
        static_cast<uint8_t>((any ? 0 : kOpenInclude) | (bare_passes ? kOpenExclude : 0));
    write(entry, Field::kFilterAnyOf, row, out.any());
    write(entry, Field::kFilterNoneOf, row, out.none());
  }

 private:
  void write(const Entry& entry, Field list, int64_t row, const NamedIds& out) const {
    thread_local std::vector<std::string_view> named;
    thread_local std::vector<int32_t> known;
    named.clear();
    take_texts(entry, list, [&](std::string_view value) { named.push_back(value); });
    ids_.find(named, known, [](std::string_view) {});
    out.write(row, known);
  }

  ValueIds ids_;
};

// A row has the ad's values, ascending. An empty list is no value.
class RuleProperties : public RuleForm {
 public:
  RuleProperties() : RuleForm(1) {}

  Refusal encode(const List* lists, std::vector<int32_t>& words) const override {
    thread_local std::vector<int32_t> values;  // so that it keeps its memory
    values.assign(lists->codes, lists->codes + lists->size);
    keep_distinct(values);
    if (!values.empty() && values.front() < 0) return {Fault::kBadValue, 0};
    words.insert(words.end(), values.begin(), values.end());
    return {};
  }
};

}  // namespace

// The arrays must outlive the handle.
GRACE_API int32_t grace_exact_add_properties(uint64_t handle, int64_t rows, int64_t values,
                                             const int64_t* offsets, const int32_t* row_values) {
  return guarded([&] {
    require_offsets(offsets, rows, "exact_add_properties: offsets descend");
    add_component(handle, std::make_unique<Properties>(values, offsets, row_values));
  });
}

GRACE_API int32_t grace_users_add_properties(uint64_t handle, const char* name, int64_t values,
                                             const int64_t* offsets, const char* utf8) {
  return guarded([&] {
    const Texts texts{values, offsets, utf8};
    add_component(handle, {name}, std::make_unique<UserFilters>(texts), Field::kFilters);
  });
}

GRACE_API int32_t grace_rules_add_properties(void* table) {
  return guarded([&] { add_component(table, std::make_unique<RuleProperties>()); });
}

}  // namespace grace::forms::properties
