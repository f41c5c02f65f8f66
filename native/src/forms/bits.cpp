// The form `bits`: a row has the values of all attributes that a rule allows, one bit each, and a
// request the values that its user has. It passes a row that has all of its bits.
#include <algorithm>
#include <string>
#include <unordered_map>
#include <vector>

#include "grace/form.h"
#include "grace/match.h"

namespace grace::forms::bits {

namespace {

class Bits : public Component {
 public:
  Bits(int32_t words, const uint64_t* table) : words_(words), table_(table) {}

  // `asked` are the users' rows, uint64 [requests, words].
  void test(const void* asked, int64_t request, const std::vector<uint64_t>&, const int32_t* rows,
            int32_t count, bool* passes) const override {
    const uint64_t* user = array_of<uint64_t>(asked) + request * words_;
    for (int32_t i = 0; i < count; ++i) {
      prefetch(row(rows[i]));
      prefetch(row(rows[i]) + words_ - 1);
    }
    for (int32_t i = 0; i < count; ++i) passes[i] = contains_all(row(rows[i]), user, words_);
  }

 private:
  const uint64_t* row(int32_t id) const { return table_ + int64_t{id} * words_; }

  int32_t words_;
  const uint64_t* table_;
};

// In the order of index.targeting.schema.CLOCKS.
enum Clock : int64_t { kNoClock, kHourOfDay, kDayOfWeek, kHourOfWeek };

int64_t floor_divide(int64_t a, int64_t b) { return a / b - (a % b < 0 ? 1 : 0); }

// Returns what a clock shows in the user's time, from 0 on. A week begins on Monday.
int64_t clock_value(int64_t clock, const Moment& moment) {
  const int64_t minutes = floor_divide(moment.at, 60'000) + moment.utc_offset_minutes;
  const int64_t hours = floor_divide(minutes, 60);
  const int64_t days = floor_divide(hours, 24);
  const int64_t hour = hours - 24 * days;
  const int64_t day = days + 3 - 7 * floor_divide(days + 3, 7);  // 1970 began on a Thursday
  return clock == kHourOfDay ? hour : clock == kDayOfWeek ? day : 24 * day + hour;
}

// An attribute's bits: one for each listed value from `first` on, and one for any other. A user
// without a value has the bit of the clock's value, or `missing`.
struct Attribute {
  std::unordered_map<std::string, int64_t> bit_of;
  int64_t first;
  int64_t other;
  int64_t missing;
  int64_t clock;
};

class UserBits : public UserForm {
 public:
  UserBits(int64_t words, std::vector<Attribute> attributes)
      : words_(words), attributes_(std::move(attributes)) {}

  // `rows` is uint64 [size, words].
  void read(const Entry* const* entries, const Moment& moment, int64_t row,
            const void* rows) const override {
    uint64_t* bits = array_of<uint64_t>(rows) + row * words_;
    std::fill_n(bits, words_, 0);
    const auto set = [&](int64_t bit) { bits[bit >> 6] |= uint64_t{1} << (bit & 63); };
    for (const Attribute& of : attributes_) {
      bool any = false;
      take_values(**entries++, [&](std::string_view value) {
        const auto found = of.bit_of.find(std::string(value));
        set(found == of.bit_of.end() ? of.other : found->second);
        any = true;
      });
      if (any) continue;
      set(of.clock == kNoClock ? of.missing : of.first + clock_value(of.clock, moment));
    }
  }

 private:
  int64_t words_;
  std::vector<Attribute> attributes_;
};

struct AttributeBits {
  int32_t first_bit;
  int32_t values;  // `other` is the bit after them
  int32_t missing_passes_exclude;
};

// The 32-bit words of a row.
struct Row {
  int32_t* words;

  void put(int32_t bit) { words[bit >> 5] |= static_cast<int32_t>(uint32_t{1} << (bit & 31)); }
  void clear(int32_t bit) { words[bit >> 5] &= ~static_cast<int32_t>(uint32_t{1} << (bit & 31)); }

  // Calls body(word, mask) for each word that has some of the bits `begin` to `last`.
  template <typename Body>
  void each_word(int32_t begin, int32_t last, Body&& body) {
    for (int32_t w = begin >> 5; w <= last >> 5; ++w) {
      uint32_t mask = ~uint32_t{0};
      if (w == begin >> 5) mask &= ~uint32_t{0} << (begin & 31);
      if (w == last >> 5) mask &= ~uint32_t{0} >> (31 - (last & 31));
      body(words[w], static_cast<int32_t>(mask));
    }
  }
};

class RuleBits : public RuleForm {
 public:
  RuleBits(int32_t words, std::vector<AttributeBits> attributes)
      : RuleForm(2 * static_cast<int32_t>(attributes.size())),
        attributes_(std::move(attributes)),
        all_(2 * words, 0) {
    Row row{all_.data()};
    for (const AttributeBits& a : attributes_) {
      for (int32_t v = 0; v <= a.values; ++v) row.put(a.first_bit + v);
    }
  }

  Refusal encode(const List* lists, std::vector<int32_t>& words) const override {
    words.insert(words.end(), all_.begin(), all_.end());
    const Row row{words.data() + words.size() - all_.size()};
    for (size_t a = 0; a < attributes_.size(); ++a) {
      const auto first = static_cast<int32_t>(2 * a);
      const Refusal refusal = encode(attributes_[a], lists[first], lists[first + 1], first, row);
      if (refusal.fault != Fault::kNone) return refusal;
    }
    return {};
  }

 private:
  static Refusal encode(const AttributeBits& attribute, const List& include, const List& exclude,
                        int32_t first, Row row) {
    const Refusal refusal = check(include, exclude, first);
    if (refusal.fault != Fault::kNone) return refusal;
    if (!include.present && exclude.size == 0) return {};
    const int32_t begin = attribute.first_bit, other = begin + attribute.values;
    if (include.present) {
      row.each_word(begin, other, [](int32_t& word, int32_t mask) { word &= ~mask; });
      for (int64_t i = 0; i < include.size; ++i) row.put(begin + include.codes[i]);
    } else if (attribute.missing_passes_exclude == 0) {
      row.clear(other);
    }
    for (int64_t i = 0; i < exclude.size; ++i) row.clear(begin + exclude.codes[i]);
    int32_t left = 0;
    row.each_word(begin, other, [&](int32_t word, int32_t mask) { left |= word & mask; });
    return left != 0 ? Refusal{} : Refusal{Fault::kEmptyDifference, first + 1};
  }

  std::vector<AttributeBits> attributes_;
  std::vector<int32_t> all_;  // the row of an ad without rules
};

}  // namespace

// table uint64 [rows, words]; it must outlive the handle.
GRACE_API int32_t grace_exact_add_bits(uint64_t handle, int32_t words, const uint64_t* table) {
  return guarded([&] { add_component(handle, std::make_unique<Bits>(words, table)); });
}

// A row has `words` words. Attribute a is names[a], and has the next values[a] texts. Each text
// has a bit, and any other value has the bit after them. An attribute with
// a clock, clocks[a], has a value for each that it shows.
GRACE_API int32_t grace_users_add_bits(uint64_t handle, int64_t words, int64_t attributes,
                                       const char* const* names, const int64_t* values,
                                       const int64_t* missing, const int64_t* clocks,
                                       const int64_t* offsets, const char* utf8) {
  return guarded([&] {
    require(words > 0, "users_add_bits: a row without words");
    const auto inside = [&](int64_t bit) { return bit >= 0 && bit < 64 * words; };
    Texts texts{0, offsets, utf8};
    std::vector<Attribute> made;
    int64_t bit = 0;
    constexpr int64_t kShown[] = {0, 24, 7, 168};  // how many values each clock has
    for (int64_t a = 0; a < attributes; ++a) {
      require(clocks[a] >= kNoClock && clocks[a] <= kHourOfWeek && values[a] >= kShown[clocks[a]],
              "users_add_bits: no such clock, or one without all its values");
      Attribute attribute{{}, bit, bit + values[a], missing[a], clocks[a]};
      require(inside(attribute.other) && inside(attribute.missing),
              "users_add_bits: a bit is not within the row");
      while (bit < attribute.other) {
        attribute.bit_of.emplace(std::string(texts[texts.count++]), bit++);
      }
      ++bit;
      made.push_back(std::move(attribute));
    }
    add_component(handle, {names, names + attributes},
                  std::make_unique<UserBits>(words, std::move(made)));
  });
}

// A row has `words` words of 64 bits.   attributes int32 [n, 3]
GRACE_API int32_t grace_rules_add_bits(void* table, int32_t words, const AttributeBits* attributes,
                                       int32_t n) {
  return guarded([&] {
    const std::vector<AttributeBits> bits(attributes, attributes + n);
    add_component(table, std::make_unique<RuleBits>(words, bits));
  });
}

}  // namespace grace::forms::bits
