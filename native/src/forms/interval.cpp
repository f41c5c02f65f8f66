// The form `interval`: a row has two numbers, and a request one: a number of its user, or the time.
// It passes a row if its number is within, both ends inclusive. An open end is infinite.
#include <cmath>
#include <cstring>
#include <limits>

#include "grace/form.h"

namespace grace::forms::interval {

namespace {

constexpr double kOpen = std::numeric_limits<double>::infinity();

class Interval : public Component {
 public:
  Interval(const double* table, bool missing_passes)
      : table_(table), missing_passes_(missing_passes) {}

  // `asked` are the numbers, float64 [requests], NaN where there is none.
  void test(const void* asked, int64_t request, const std::vector<uint64_t>&, const int32_t* rows,
            int32_t count, bool* passes) const override {
    const double number = array_of<double>(asked)[request];
    const bool missing = std::isnan(number);
    for (int32_t i = 0; i < count; ++i) prefetch(table_ + 2 * int64_t{rows[i]});
    for (int32_t i = 0; i < count; ++i) {
      const double* row = table_ + 2 * int64_t{rows[i]};
      passes[i] = missing ? missing_passes_ || (row[0] == -kOpen && row[1] == kOpen)
                          : row[0] <= number && number <= row[1];
    }
  }

 private:
  const double* table_;
  bool missing_passes_;
};

class UserNumber : public UserForm {
 public:
  void read(const Entry* const* entries, const Moment&, int64_t row,
            const void* rows) const override {
    const Entry& entry = *entries[0];
    if (entry.number(Field::kUserValues) != 0) {
      throw entry.fault(Wrong::kTakesNumber, Field::kUserValues, 0);
    }
    const bool present = entry.number(Field::kUserNumber) != 0;
    if (present && !std::isfinite(entry.real)) {
      throw entry.fault(Wrong::kNotFinite, Field::kUserNumber, wire::code_of(entry.real));
    }
    array_of<double>(rows)[row] = present ? entry.real : std::numeric_limits<double>::quiet_NaN();
  }
};

class Time : public UserForm {
 public:
  void read(const Entry* const*, const Moment& moment, int64_t row,
            const void* rows) const override {
    array_of<double>(rows)[row] = static_cast<double>(moment.at);
  }
};

// A row has both ends, two words each. With `missing_passes`, the ends of index/targeting/leaves.py
// that no number is between are a row that only users without a number pass.
class RuleInterval : public RuleForm {
 public:
  explicit RuleInterval(bool missing_passes) : RuleForm(2), missing_passes_(missing_passes) {}

  Refusal encode(const List* lists, std::vector<int32_t>& words) const override {
    double ends[] = {-kOpen, kOpen};
    bool no_number = missing_passes_ && lists[0].present && lists[1].present;
    for (int32_t i = 0; i < 2; ++i) {
      if (!lists[i].present) continue;
      require(lists[i].size == 2, "rules_add: a number has two words");
      std::memcpy(&ends[i], lists[i].codes, sizeof ends[i]);
      if (std::isnan(ends[i])) return {Fault::kBadValue, i};
      no_number &= ends[i] == 1 - i && std::signbit(ends[i]) == (i == 1);
      if (ends[i] == 0) ends[i] = 0;  // -0.0 is 0.0, so that equal rows have equal words
    }
    // The number of a user is finite.
    const bool empty = ends[0] > ends[1] || ends[0] == kOpen || ends[1] == -kOpen;
    if (empty && !no_number) return {Fault::kEmptyInterval, lists[1].present ? 1 : 0};
    int32_t row[4];
    std::memcpy(row, ends, sizeof row);
    words.insert(words.end(), row, row + 4);
    return {};
  }

 private:
  bool missing_passes_;
};

}  // namespace

// table float64 [rows, 2]; it must outlive the handle.
GRACE_API int32_t grace_exact_add_interval(uint64_t handle, const double* table,
                                           int32_t missing_passes) {
  return guarded(
      [&] { add_component(handle, std::make_unique<Interval>(table, missing_passes != 0)); });
}

GRACE_API int32_t grace_users_add_interval(uint64_t handle, const char* name, int32_t is_flight) {
  return guarded([&] {
    if (is_flight != 0) return add_component(handle, {}, std::make_unique<Time>());
    add_component(handle, {name}, std::make_unique<UserNumber>());
  });
}

GRACE_API int32_t grace_rules_add_interval(void* table, int32_t missing_passes) {
  return guarded(
      [&] { add_component(table, std::make_unique<RuleInterval>(missing_passes != 0)); });
}

}  // namespace grace::forms::interval
