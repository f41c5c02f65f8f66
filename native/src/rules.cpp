// The builder's table of targeting rules: ads come in batches, each ad's rule is encoded and
// interned.
//
// A rule is a bitmask row and one set rule per set; the three kinds are deduplicated separately.
// Ids follow the order of arrival: the builder renumbers them once the ads are in (SID, ad id)
// order.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "grace/abi.h"
#include "grace/interner.h"
#include "grace/parallel.h"

// One list column of a batch: values of row r are codes[offsets[r] .. offsets[r + 1]] where
// valid[r]. A code is the value's place in the attribute's list or its id within the set, or a
// ValueFault.
struct GraceListColumn {
  const int64_t* offsets;  // null: the column is absent, no row has a rule
  const uint8_t* valid;
  const int32_t* codes;
};

struct GraceAttributeBits {
  int32_t first_bit;
  int32_t values;  // `other` is the bit after them
  int32_t missing_passes_exclude;
};

namespace {

using grace::Interner;
using grace::Range;

constexpr int32_t kNewRule = -1;
constexpr int32_t kRefused = -2;

enum Fault : int32_t {
  kNoFault = 0,
  kBadValue = 1,         // a code below 0: the caller knows why
  kEmptyInclude = 2,     // a list that allows no user
  kEmptyDifference = 3,  // exclude takes away all that include allows
};

struct List {
  const int32_t* codes = nullptr;
  int64_t size = 0;
  bool present = false;
};

List list_of(const GraceListColumn& column, int64_t row) {
  if (column.offsets == nullptr || column.valid[row] == 0) return {};
  const int64_t begin = column.offsets[row];
  return {column.codes + begin, column.offsets[row + 1] - begin, true};
}

void set_bit(uint64_t* row, int32_t bit) { row[bit >> 6] |= uint64_t{1} << (bit & 63); }
void clear_bit(uint64_t* row, int32_t bit) { row[bit >> 6] &= ~(uint64_t{1} << (bit & 63)); }
bool has_bit(const uint64_t* row, int32_t bit) { return (row[bit >> 6] >> (bit & 63)) & 1; }

// What one thread found in its rows: the codes of new rules, to be added in row order afterwards.
struct Encoded {
  std::vector<uint64_t> bitmasks;                 // [rows, words]
  std::vector<std::vector<int32_t>> set_codes;    // per set: spans of the rows, one after another
  std::vector<std::vector<int64_t>> set_offsets;  // per set: [rows + 1]
  std::vector<int32_t> scratch;                   // one sorted list
};

class RuleTable {
 public:
  RuleTable(int32_t words, std::vector<GraceAttributeBits> attributes, int32_t num_sets)
      : words_(words), attributes_(std::move(attributes)), sets_(num_sets), all_(words, 0) {
    for (const GraceAttributeBits& a : attributes_) {
      for (int32_t v = 0; v <= a.values; ++v) set_bit(all_.data(), a.first_bit + v);
    }
  }

  // columns: include and exclude of each attribute, then of each set. rule_of int32 [rows]: on
  // entry kRefused for rows to pass over; on return a rule, or kRefused with faults[row] = (fault,
  // column).
  void add(int64_t rows, const GraceListColumn* columns, int32_t threads, int32_t* rule_of,
           int32_t* faults) {
    const int64_t runs = std::max<int64_t>(1, std::min<int64_t>(threads, rows));
    std::vector<Encoded> encoded(runs);
    grace::parallel_tasks(runs, threads, [&](int64_t r) {
      encode_run(grace::chunk_of(rows, runs, r), columns, rule_of, faults, encoded[r]);
    });
    for (int64_t r = 0; r < runs; ++r) {
      const Range run = grace::chunk_of(rows, runs, r);
      for (int64_t row = run.begin; row < run.end; ++row) {
        if (rule_of[row] == kNewRule) rule_of[row] = add_rule(encoded[r], row - run.begin);
      }
    }
  }

  const Interner<uint64_t>& bitmasks() const { return bitmasks_; }
  const std::vector<Interner<int32_t>>& sets() const { return sets_; }
  const Interner<int32_t>& rules() const { return rules_; }

 private:
  void encode_run(Range run, const GraceListColumn* columns, int32_t* rule_of, int32_t* faults,
                  Encoded& out) const {
    out.set_codes.resize(sets_.size());
    out.set_offsets.assign(sets_.size(), std::vector<int64_t>(1, 0));
    std::vector<int32_t> parts(1 + sets_.size());
    for (int64_t row = run.begin; row < run.end; ++row) {
      out.bitmasks.insert(out.bitmasks.end(), all_.begin(), all_.end());
      if (rule_of[row] != kRefused) {
        rule_of[row] =
            encode_row(row, columns, faults + 2 * row, out, parts) ? find(parts) : kRefused;
      }
      for (size_t s = 0; s < sets_.size(); ++s) {
        out.set_offsets[s].push_back(static_cast<int64_t>(out.set_codes[s].size()));
      }
    }
  }

  // Fills `parts` with the ids of the row's parts, kAbsent for those not seen in earlier batches.
  bool encode_row(int64_t row, const GraceListColumn* columns, int32_t* fault, Encoded& out,
                  std::vector<int32_t>& parts) const {
    uint64_t* bitmask = out.bitmasks.data() + out.bitmasks.size() - words_;
    int32_t column = 0;
    for (const GraceAttributeBits& attribute : attributes_) {
      const List include = list_of(columns[column], row);
      const List exclude = list_of(columns[column + 1], row);
      if (!encode_attribute(attribute, include, exclude, bitmask, column, fault)) return false;
      column += 2;
    }
    parts[0] = bitmasks_.find(bitmask, words_);
    for (size_t s = 0; s < sets_.size(); ++s, column += 2) {
      const List include = list_of(columns[column], row);
      const List exclude = list_of(columns[column + 1], row);
      std::vector<int32_t>& codes = out.set_codes[s];
      const size_t begin = codes.size();
      if (!encode_set(include, exclude, codes, out.scratch, column, fault)) return false;
      const int32_t* span = codes.data() + begin;
      const auto length = static_cast<int64_t>(codes.size() - begin);
      parts[1 + s] = sets_[s].find(span, length);
    }
    return true;
  }

  static bool refuse(int32_t* fault, Fault what, int32_t column) {
    fault[0] = what;
    fault[1] = column;
    return false;
  }

  static bool all_good(const List& list) {
    return std::all_of(list.codes, list.codes + list.size, [](int32_t code) { return code >= 0; });
  }

  static bool check(const List& include, const List& exclude, int32_t column, int32_t* fault) {
    if (!all_good(include)) return refuse(fault, kBadValue, column);
    if (!all_good(exclude)) return refuse(fault, kBadValue, column + 1);
    if (include.present && include.size == 0) return refuse(fault, kEmptyInclude, column);
    return true;
  }

  // `bitmask` enters with all bits of the attribute set.
  static bool encode_attribute(const GraceAttributeBits& attribute, const List& include,
                               const List& exclude, uint64_t* bitmask, int32_t column,
                               int32_t* fault) {
    if (!check(include, exclude, column, fault)) return false;
    if (!include.present && exclude.size == 0) return true;
    const int32_t other = attribute.first_bit + attribute.values;
    if (include.present) {
      for (int32_t bit = attribute.first_bit; bit <= other; ++bit) clear_bit(bitmask, bit);
      for (int64_t i = 0; i < include.size; ++i) {
        set_bit(bitmask, attribute.first_bit + include.codes[i]);
      }
    } else if (attribute.missing_passes_exclude == 0) {
      clear_bit(bitmask, other);
    }
    for (int64_t i = 0; i < exclude.size; ++i) {
      clear_bit(bitmask, attribute.first_bit + exclude.codes[i]);
    }
    for (int32_t bit = attribute.first_bit; bit <= other; ++bit) {
      if (has_bit(bitmask, bit)) return true;
    }
    return refuse(fault, kEmptyDifference, column + 1);
  }

  // Appends the set rule: how many values it includes, those, and those it excludes, each
  // ascending.
  static bool encode_set(const List& include, const List& exclude, std::vector<int32_t>& codes,
                         std::vector<int32_t>& scratch, int32_t column, int32_t* fault) {
    if (!check(include, exclude, column, fault)) return false;
    const size_t begin = codes.size();
    codes.push_back(0);
    append_sorted(include, codes, scratch);
    const size_t middle = codes.size();
    codes[begin] = static_cast<int32_t>(middle - begin - 1);
    append_sorted(exclude, codes, scratch);
    if (include.size > 0 && std::includes(codes.begin() + middle, codes.end(),
                                          codes.begin() + begin + 1, codes.begin() + middle)) {
      codes.resize(begin);
      return refuse(fault, kEmptyDifference, column + 1);
    }
    return true;
  }

  static void append_sorted(const List& list, std::vector<int32_t>& codes,
                            std::vector<int32_t>& scratch) {
    scratch.assign(list.codes, list.codes + list.size);
    std::sort(scratch.begin(), scratch.end());
    scratch.erase(std::unique(scratch.begin(), scratch.end()), scratch.end());
    codes.insert(codes.end(), scratch.begin(), scratch.end());
  }

  int32_t find(const std::vector<int32_t>& parts) const {
    const auto count = static_cast<int64_t>(parts.size());
    if (std::find(parts.begin(), parts.end(), Interner<int32_t>::kAbsent) != parts.end()) {
      return kNewRule;
    }
    const int32_t rule = rules_.find(parts.data(), count);
    return rule == Interner<int32_t>::kAbsent ? kNewRule : rule;
  }

  int32_t add_rule(const Encoded& from, int64_t row) {
    std::vector<int32_t> parts;
    const uint64_t* bitmask = from.bitmasks.data() + row * words_;
    parts.push_back(bitmasks_.find_or_add(bitmask, words_));
    for (size_t s = 0; s < sets_.size(); ++s) {
      const int32_t* span = from.set_codes[s].data() + from.set_offsets[s][row];
      const int64_t length = from.set_offsets[s][row + 1] - from.set_offsets[s][row];
      parts.push_back(sets_[s].find_or_add(span, length));
    }
    const auto count = static_cast<int64_t>(parts.size());
    return rules_.find_or_add(parts.data(), count);
  }

  int32_t words_;
  std::vector<GraceAttributeBits> attributes_;
  Interner<uint64_t> bitmasks_;
  std::vector<Interner<int32_t>> sets_;
  Interner<int32_t> rules_;
  std::vector<uint64_t> all_;  // the row of an ad without rules
};

RuleTable* table_of(void* handle) { return static_cast<RuleTable*>(handle); }

}  // namespace

GRACE_API int32_t grace_rules_new(int32_t words, const GraceAttributeBits* attributes,
                                  int32_t num_attributes, int32_t num_sets, void** table) {
  return grace::guarded(
      [&] { *table = new RuleTable(words, {attributes, attributes + num_attributes}, num_sets); });
}

GRACE_API int32_t grace_rules_free(void* table) {
  return grace::guarded([&] { delete table_of(table); });
}

GRACE_API int32_t grace_rules_add(void* table, int64_t rows, const GraceListColumn* columns,
                                  int32_t threads, int32_t* rule_of, int32_t* faults) {
  return grace::guarded([&] { table_of(table)->add(rows, columns, threads, rule_of, faults); });
}

// sizes int64 [2 + 2 * sets]: rules, bitmask rows, then per set its rules and the words they take.
GRACE_API int32_t grace_rules_sizes(void* table, int64_t* sizes) {
  return grace::guarded([&] {
    const RuleTable& rules = *table_of(table);
    *sizes++ = rules.rules().size();
    *sizes++ = rules.bitmasks().size();
    for (const Interner<int32_t>& set : rules.sets()) {
      *sizes++ = set.size();
      *sizes++ = set.num_words();
    }
  });
}

// parts int32 [rules, 1 + sets], bitmasks uint64 [rows, words].
GRACE_API int32_t grace_rules_take(void* table, int32_t* parts, uint64_t* bitmasks) {
  return grace::guarded([&] {
    const RuleTable& rules = *table_of(table);
    std::copy_n(rules.rules().words(), rules.rules().num_words(), parts);
    std::copy_n(rules.bitmasks().words(), rules.bitmasks().num_words(), bitmasks);
  });
}

// offsets int64 [set rules + 1], words int32 [...]: the spans that encode_set wrote.
GRACE_API int32_t grace_rules_take_set(void* table, int32_t set, int64_t* offsets, int32_t* words) {
  return grace::guarded([&] {
    const RuleTable& rules = *table_of(table);
    grace::require(set >= 0 && set < static_cast<int32_t>(rules.sets().size()),
                   "rules_take_set: no such set");
    const Interner<int32_t>& spans = rules.sets()[set];
    std::copy_n(spans.words(), spans.num_words(), words);
    for (int32_t id = 0; id < spans.size(); ++id) offsets[id] = spans.span(id) - spans.words();
    offsets[spans.size()] = spans.num_words();
  });
}
