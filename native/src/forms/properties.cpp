// The form `properties`: a row has the values of an ad, and a request says which it wants: it
// passes a row with one of some values, and with none of others. index/forms/properties.py
// describes what requests ask.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <unordered_map>

#include "grace/abi.h"
#include "grace/component.h"
#include "grace/rule_form.h"
#include "grace/user_form.h"

namespace grace {

namespace {

// Bits of a request's `kinds`. 0: no filter.
constexpr uint8_t kAsksAny = 1, kAsksNone = 2, kBarePasses = 4;

// Request b has the ids any_ids[any_offsets[b] .. any_offsets[b + 1]], ascending, of those values
// that ads have; and so with none_ids.
template <typename Kind, typename Id>
struct AskedFilters {
  Kind* kinds;
  Id* any_offsets;
  Id* any_ids;
  Id* none_offsets;
  Id* none_ids;
  int64_t any_room;  // of the ids of all requests
  int64_t none_room;
};

}  // namespace

}  // namespace grace

namespace grace::exact {

namespace {

using Filters = AskedFilters<const uint8_t, const int32_t>;

const Filters& filters_of(const void* asked) { return *static_cast<const Filters*>(asked); }

// Row r is values[offsets[r] .. offsets[r + 1]].
class Properties : public Component {
 public:
  Properties(int64_t values, const int64_t* offsets, const int32_t* ids)
      : values_(values), offsets_(offsets), ids_(ids) {}

  void require_valid(const void* asked, int64_t requests) const override {
    const Filters& filters = filters_of(asked);
    for (const auto& [offsets, ids] : {std::pair(filters.any_offsets, filters.any_ids),
                                       std::pair(filters.none_offsets, filters.none_ids)}) {
      require_offsets(offsets, requests, "exact_match: offsets of a filter's ids descend");
      require(std::all_of(ids + offsets[0], ids + offsets[requests],
                          [&](int32_t id) { return id >= 0 && id < values_; }),
              "exact_match: a filter's value id is out of range");
    }
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
    const uint8_t kinds = filters_of(asked).kinds[request];
    if (kinds == 0) {
      std::fill_n(passes, count, true);
      return;
    }
    for (int32_t i = 0; i < count; ++i) prefetch(offsets_ + rows[i]);
    for (int32_t i = 0; i < count; ++i) prefetch(ids_ + offsets_[rows[i]]);
    for (int32_t i = 0; i < count; ++i) {
      const int32_t *begin = ids_ + offsets_[rows[i]], *end = ids_ + offsets_[rows[i] + 1];
      bool wanted = (kinds & kAsksAny) == 0, unwanted = false;
      for (const int32_t* id = begin; id < end; ++id) {
        const uint64_t* word = marks.data() + 2 * (*id >> 6);
        wanted |= (word[0] >> (*id & 63) & 1) != 0;
        unwanted |= (word[1] >> (*id & 63) & 1) != 0;
      }
      passes[i] = begin == end ? (kinds & kBarePasses) != 0 : wanted && !unwanted;
    }
  }

 private:
  template <typename Take>
  static void each_id(const void* asked, int64_t request, Take&& take) {
    const Filters& filters = filters_of(asked);
    const auto each = [&](const int32_t* offsets, const int32_t* ids, int32_t of_none) {
      for (int32_t i = offsets[request]; i < offsets[request + 1]; ++i) take(ids[i], of_none);
    };
    each(filters.any_offsets, filters.any_ids, 0);
    each(filters.none_offsets, filters.none_ids, 1);
  }

  int64_t values_;
  const int64_t* offsets_;
  const int32_t* ids_;
};

}  // namespace

// The arrays must outlive the handle.
GRACE_API int32_t grace_exact_add_properties(uint64_t handle, const int32_t* ids, int64_t stride,
                                             int64_t rows, int64_t values, const int64_t* offsets,
                                             const int32_t* row_values) {
  return guarded([&] {
    require_offsets(offsets, rows, "exact_add_properties: offsets descend");
    add_component(handle, {ids, stride, std::make_unique<Properties>(values, offsets, row_values)});
  });
}

}  // namespace grace::exact

namespace grace::users {

namespace {

using wire::Entry;
using wire::Field;

using Filters = AskedFilters<uint8_t, int32_t>;

class UserFilters : public UserForm {
 public:
  explicit UserFilters(Texts values) {
    id_of_.reserve(values.count);
    for (int64_t id = 0; id < values.count; ++id) id_of_[values[id]] = static_cast<int32_t>(id);
  }

  void read(const Entry* const* entries, const Moment&, int64_t row,
            const void* rows) const override {
    const Filters& out = *static_cast<const Filters*>(rows);
    const Entry& entry = *entries[0];
    out.kinds[row] = &entry == &wire::kNoEntry ? 0 : kinds_of(entry);
    append(entry, Field::kFilterAnyOf, row, out.any_offsets, out.any_ids, out.any_room);
    append(entry, Field::kFilterNoneOf, row, out.none_offsets, out.none_ids, out.none_room);
  }

 private:
  // A filter without values still asks for none of none, so that it is not 0.
  static uint8_t kinds_of(const Entry& entry) {
    enum Unknown : int64_t { kUnspecified, kPasses, kBlocked };
    const bool any = entry.number(Field::kFilterAnyOf) != 0;
    const int64_t unknown = entry.number(Field::kFilterUnknown);
    const bool bare_passes = unknown == kPasses || (unknown == kUnspecified && !any);
    const bool none = entry.number(Field::kFilterNoneOf) != 0 || !any;
    return static_cast<uint8_t>((any ? kAsksAny : 0) | (none ? kAsksNone : 0) |
                                (bare_passes ? kBarePasses : 0));
  }

  void append(const Entry& entry, Field list, int64_t row, int32_t* offsets, int32_t* ids,
              int64_t room) const {
    thread_local std::vector<int32_t> found;
    found.clear();
    take_texts(entry, list, [&](std::string_view value) {
      const auto known = id_of_.find(value);
      if (known != id_of_.end()) found.push_back(known->second);
    });
    keep_distinct(found);
    if (row == 0) offsets[0] = 0;
    const auto count = static_cast<int64_t>(found.size());
    require(count <= room - offsets[row], "users_read: no room for the values of a filter");
    std::copy(found.begin(), found.end(), ids + offsets[row]);
    offsets[row + 1] = offsets[row] + static_cast<int32_t>(count);
  }

  std::unordered_map<std::string_view, int32_t> id_of_;
};

}  // namespace

// The texts of the values must outlive the handle.
GRACE_API int32_t grace_users_add_properties(uint64_t handle, const char* name, int64_t values,
                                             const int64_t* offsets, const uint8_t* utf8) {
  return guarded([&] {
    require(values <= INT32_MAX, "users_add_properties: too many values");
    const Texts texts{values, offsets, reinterpret_cast<const char*>(utf8)};
    add_component(handle, {name}, std::make_unique<UserFilters>(texts), Field::kFilters);
  });
}

}  // namespace grace::users

namespace grace::rules {

namespace {

// A row has the ad's values, ascending. An empty list is no value.
class RuleProperties : public RuleForm {
 public:
  RuleProperties() : RuleForm(1) {}

  Refusal encode(const List* lists, std::vector<int32_t>& words) const override {
    std::vector<int32_t> values(lists->codes, lists->codes + lists->size);
    users::keep_distinct(values);
    if (!values.empty() && values.front() < 0) return {Fault::kBadValue, 0};
    words.insert(words.end(), values.begin(), values.end());
    return {};
  }
};

}  // namespace

GRACE_API int32_t grace_rules_add_properties(void* table) {
  return guarded([&] { add_component(table, std::make_unique<RuleProperties>()); });
}

}  // namespace grace::rules
