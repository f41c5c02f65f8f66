// How a form of component encodes what an ad's columns say: a row is a span of words.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

namespace grace::rules {

// One cell of an ad, in words. A value's word is its code: its place in the attribute's list or its
// id within the set; a bad value has one below 0. ListColumn of index/forms/component.py has the
// words of other columns.
struct List {
  const int32_t* codes = nullptr;
  int64_t size = 0;
  bool present = false;
};

enum class Fault : int32_t {
  kNone = 0,
  kBadValue = 1,         // the caller knows why
  kEmptyInclude = 2,     // a list that allows no user
  kEmptyDifference = 3,  // exclude takes away all that include allows
  kEmptyInterval = 4,    // no number is within
};

// A fault and the list that has it.
struct Refusal {
  Fault fault = Fault::kNone;
  int32_t list = 0;
};

class RuleForm {
 public:
  explicit RuleForm(int32_t lists) : lists(lists) {}
  virtual ~RuleForm() = default;

  // Appends the row that the lists of one ad mean. What it appends is void after a refusal.
  virtual Refusal encode(const List* lists, std::vector<int32_t>& words) const = 0;

  const int32_t lists;  // columns that the form reads
};

// The next component of this table's rules, before the first row.
void add_component(void* table, std::unique_ptr<const RuleForm> form);

// What is wrong with an include and an exclude list on their own.
inline Refusal check(const List& include, const List& exclude, int32_t first) {
  const auto good = [](const List& list) {
    return std::all_of(list.codes, list.codes + list.size, [](int32_t code) { return code >= 0; });
  };
  if (!good(include)) return {Fault::kBadValue, first};
  if (!good(exclude)) return {Fault::kBadValue, first + 1};
  if (include.present && include.size == 0) return {Fault::kEmptyInclude, first};
  return {};
}

}  // namespace grace::rules
