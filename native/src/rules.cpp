// The builder's table of targeting rules: ads come in batches, each ad's rule is encoded and
// interned.
//
// A rule has a row of each component; the rows of each and the rules are deduplicated. An ad with
// clauses has several rules, which are interned as an alternative. Ids follow the order of arrival:
// the builder renumbers them once the ads are in (SID, ad id) order.
#include <algorithm>
#include <memory>
#include <vector>

#include "grace/abi.h"
#include "grace/interner.h"
#include "grace/parallel.h"
#include "grace/rule_form.h"

// One column of a batch: values of row r are codes[offsets[r] .. offsets[r + 1]] where
// valid[r].
struct GraceListColumn {
  const int64_t* offsets;  // null: the column is absent, no row has a rule
  const uint8_t* valid;
  const int32_t* codes;
};

namespace grace::rules {

namespace {

constexpr int64_t kBlock = 256;  // rows that are encoded column by column, and looked up together
constexpr int32_t kNewRule = Interner<int32_t>::kAbsent;
constexpr int32_t kRefused = -2;
constexpr int32_t kFirstAlternative = -3;  // alternative i is -3 - i

using Lookup = Interner<int32_t>::Lookup;

List list_of(const GraceListColumn& column, int64_t row) {
  if (column.offsets == nullptr || column.valid[row] == 0) return {};
  const int64_t begin = column.offsets[row];
  return {column.codes + begin, column.offsets[row + 1] - begin, true};
}

// Rows of one component, one after another.
struct Spans {
  std::vector<int32_t> words;
  std::vector<int64_t> ends;  // [rows]

  const int32_t* begin(int64_t row) const { return words.data() + (row == 0 ? 0 : ends[row - 1]); }
  int64_t length(int64_t row) const { return ends[row] - (row == 0 ? 0 : ends[row - 1]); }
};

// A run of rows, and the ids of their parts, kAbsent for those not seen in earlier batches.
struct Encoded {
  std::vector<Spans> spans;    // of each component
  std::vector<int32_t> parts;  // [rows, components]
};

struct Component {
  std::unique_ptr<const RuleForm> form;
  Interner<int32_t> rows;
};

class RuleTable {
 public:
  // columns: those of each component. rule_of int32 [rows]: on entry kRefused for rows to pass
  // over; on return a rule, or kRefused with faults[row] = (fault, column).
  void add(int64_t rows, const GraceListColumn* columns, int32_t threads, int32_t* rule_of,
           int32_t* faults) {
    const int64_t runs = std::max<int64_t>(1, std::min<int64_t>(threads, rows));
    if (static_cast<int64_t>(encoded.size()) < runs) encoded.resize(runs);
    parallel_tasks(runs, threads, [&](int64_t r) {
      encode_run(chunk_of(rows, runs, r), columns, rule_of, faults, encoded[r]);
    });
    for (int64_t r = 0; r < runs; ++r) {
      const Range run = chunk_of(rows, runs, r);
      for (int64_t row = run.begin; row < run.end; ++row) {
        if (rule_of[row] == kNewRule) rule_of[row] = add_rule(encoded[r], row - run.begin);
      }
    }
  }

  // Gives ad i the rules of rows offsets[i] .. offsets[i + 1], in their order: one rule, an
  // alternative, or kRefused if one of them is.
  void join(int64_t ads, const int64_t* offsets, const int32_t* rule_of, int32_t* joined) {
    std::vector<int32_t> own;
    for (int64_t i = 0; i < ads; ++i) {
      own.clear();
      for (int64_t row = offsets[i]; row < offsets[i + 1]; ++row) {
        if (std::find(own.begin(), own.end(), rule_of[row]) == own.end())
          own.push_back(rule_of[row]);
      }
      if (std::find(own.begin(), own.end(), kRefused) != own.end()) {
        joined[i] = kRefused;
      } else if (own.size() == 1) {
        joined[i] = own[0];
      } else {
        joined[i] = kFirstAlternative -
                    alternatives.find_or_add(own.data(), static_cast<int64_t>(own.size()));
      }
    }
  }

  std::vector<Component> components;
  Interner<int32_t> rules;
  Interner<int32_t> alternatives;

 private:
  // What each thread found in its rows. New rules are added in row order afterwards. The next batch
  // reuses the memory.
  std::vector<Encoded> encoded;

  void encode_run(Range run, const GraceListColumn* columns, int32_t* rule_of, int32_t* faults,
                  Encoded& out) const {
    const auto count = static_cast<int64_t>(components.size());
    out.spans.resize(count);
    for (Spans& spans : out.spans) {
      spans.words.clear();
      spans.ends.clear();
    }
    out.parts.resize(count * (run.end - run.begin));
    std::vector<Lookup> lookups;
    for (int64_t first = run.begin; first < run.end; first += kBlock) {
      const Range block{first, std::min(first + kBlock, run.end)};
      const int64_t begin = first - run.begin, end = block.end - run.begin;
      int32_t column = 0;
      for (int64_t c = 0; c < count; ++c) {
        Spans& spans = out.spans[c];
        encode_block(block, *components[c].form, columns, column, rule_of, faults, spans);
        column += components[c].form->lists;
        lookups.clear();
        for (int64_t row = begin; row < end; ++row) {
          lookups.push_back({&components[c].rows, spans.begin(row), spans.length(row),
                             &out.parts[row * count + c]});
        }
        Interner<int32_t>::find(lookups);
      }
      // A rule with a new part is new: no rule has the part kAbsent.
      lookups.clear();
      for (int64_t row = block.begin; row < block.end; ++row) {
        if (rule_of[row] == kRefused) continue;
        lookups.push_back({&rules, &out.parts[(row - run.begin) * count], count, rule_of + row});
      }
      Interner<int32_t>::find(lookups);
    }
  }

  // Appends the rows of one component, whose first column is `column`; nothing for refused rows.
  void encode_block(Range block, const RuleForm& form, const GraceListColumn* columns,
                    int32_t column, int32_t* rule_of, int32_t* faults, Spans& out) const {
    std::vector<List> lists(form.lists);
    for (int64_t row = block.begin; row < block.end; ++row) {
      if (rule_of[row] != kRefused) {
        for (int32_t i = 0; i < form.lists; ++i) lists[i] = list_of(columns[column + i], row);
        const Refusal refusal = form.encode(lists.data(), out.words);
        if (refusal.fault != Fault::kNone) {
          faults[2 * row] = static_cast<int32_t>(refusal.fault);
          faults[2 * row + 1] = column + refusal.list;
          rule_of[row] = kRefused;
        }
      }
      out.ends.push_back(static_cast<int64_t>(out.words.size()));
    }
  }

  // Makes a rule of a row, and adds the parts of it that no table has yet.
  int32_t add_rule(Encoded& from, int64_t row) {
    const auto count = static_cast<int64_t>(components.size());
    int32_t* parts = from.parts.data() + row * count;
    for (int64_t c = 0; c < count; ++c) {
      if (parts[c] != Interner<int32_t>::kAbsent) continue;
      const Spans& spans = from.spans[c];
      parts[c] = components[c].rows.find_or_add(spans.begin(row), spans.length(row));
    }
    return rules.find_or_add(parts, count);
  }
};

RuleTable* table_of(void* handle) { return static_cast<RuleTable*>(handle); }

// The spans of a table: 0 the rules, 1 the alternatives, 2 + c the rows of component c.
const Interner<int32_t>& spans_of(const RuleTable& table, size_t which) {
  if (which < 2) return which == 0 ? table.rules : table.alternatives;
  return table.components.at(which - 2).rows;
}

}  // namespace

void add_component(void* table, std::unique_ptr<const RuleForm> form) {
  table_of(table)->components.push_back({std::move(form), {}});
}

// Each form of component has a function that adds one, in the schema's order.
GRACE_API int32_t grace_rules_new(void** table) {
  return guarded([&] { *table = new RuleTable(); });
}

GRACE_API int32_t grace_rules_free(void* table) {
  return guarded([&] { delete table_of(table); });
}

GRACE_API int32_t grace_rules_add(void* table, int64_t rows, const GraceListColumn* columns,
                                  int32_t threads, int32_t* rule_of, int32_t* faults) {
  return guarded([&] { table_of(table)->add(rows, columns, threads, rule_of, faults); });
}

// offsets int64 [ads + 1], rule_of int32 [offsets[ads]], joined int32 [ads]: a rule, kRefused, or
// an alternative.
GRACE_API int32_t grace_rules_join(void* table, int64_t ads, const int64_t* offsets,
                                   const int32_t* rule_of, int32_t* joined) {
  return guarded([&] { table_of(table)->join(ads, offsets, rule_of, joined); });
}

// sizes int64 [2 + components, 2]: how many spans each has, and how many words.
GRACE_API int32_t grace_rules_sizes(void* table, int64_t* sizes) {
  return guarded([&] {
    for (size_t which = 0; which < 2 + table_of(table)->components.size(); ++which) {
      *sizes++ = spans_of(*table_of(table), which).size();
      *sizes++ = spans_of(*table_of(table), which).num_words();
    }
  });
}

// offsets int64 [spans + 1], words int32 [...]
GRACE_API int32_t grace_rules_take(void* table, int64_t which, int64_t* offsets, int32_t* words) {
  return guarded([&] {
    const Interner<int32_t>& from = spans_of(*table_of(table), which);
    std::copy_n(from.words(), from.num_words(), words);
    for (int32_t id = 0; id < from.size(); ++id) offsets[id] = from.span(id) - from.words();
    offsets[from.size()] = from.num_words();
  });
}

}  // namespace grace::rules
