// The form `lists`: a row has the values of one set that a rule includes, and those it excludes;
// a request has its user's values. It passes a row if it has one of the included values, where
// there are any, and none of the excluded ones.
#include <algorithm>
#include <cstdint>
#include <memory>

#include "grace/abi.h"
#include "grace/component.h"

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
