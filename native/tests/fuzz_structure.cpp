// Nearly right arrays of a snapshot: each check accepts exactly what its plain definition accepts.
//
// Arrays are exact-size heap blocks, so that the sanitizers see every read beyond them.
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "fuzz_driver.h"
#include "grace/utf8.h"

extern "C" {
int32_t grace_check_offsets_i32(const int32_t*, int64_t, int64_t, int32_t, int32_t, int64_t*);
int32_t grace_check_offsets_i64(const int64_t*, int64_t, int64_t, int32_t, int32_t, int64_t*);
int32_t grace_check_groups_i32_u16(const int32_t*, int64_t, const uint16_t*, int64_t, int64_t,
                                   int32_t, int64_t*);
int32_t grace_check_groups_i32_i32(const int32_t*, int64_t, const int32_t*, int64_t, int64_t,
                                   int32_t, int64_t*);
int32_t grace_check_groups_i64_i32(const int64_t*, int64_t, const int32_t*, int64_t, int64_t,
                                   int32_t, int64_t*);
int32_t grace_check_groups_i64_i64(const int64_t*, int64_t, const int64_t*, int64_t, int64_t,
                                   int32_t, int64_t*);
int32_t grace_check_rules_of_ads(const int64_t*, int64_t, const int32_t*, int64_t, const int32_t*,
                                 const int32_t*, int64_t, int32_t, int64_t*);
int32_t grace_check_ids(const int32_t*, int64_t, int64_t, int64_t, int64_t, int32_t, int64_t*);
int32_t grace_check_ascending(const int64_t*, int64_t, int32_t, int64_t*);
int32_t grace_check_padding(const uint64_t*, int64_t, int64_t, int64_t, int32_t, int64_t*);
int32_t grace_check_stars(const uint64_t*, const uint8_t*, int64_t, int64_t, int64_t, uint64_t,
                          int32_t, int64_t*);
int32_t grace_check_lookup(const int64_t*, const int32_t*, int64_t, int32_t, int64_t*);
int32_t grace_check_finite(const float*, int64_t, int32_t, int64_t*);
int32_t grace_check_strings(const int64_t*, int64_t, const uint8_t*, int64_t, int32_t, int64_t*);
}

namespace {

using fuzz::below;
using fuzz::chance;
using fuzz::Random;

// Calls check(threads, fault). It must accept right arrays, and name a place up to `count` in
// others.
template <typename Check>
void expect(Random& random, bool right, int64_t count, Check&& check) {
  int64_t fault[2] = {-1, -1};
  EXPECT(check(static_cast<int32_t>(1 + below(random, 3)), fault) == 0);
  EXPECT((fault[0] == 0) == right);
  EXPECT(right || (0 <= fault[1] && fault[1] <= count));
}

template <typename T>
void replace_one(Random& random, std::vector<T>& values) {
  using Limits = std::numeric_limits<T>;
  const auto size = static_cast<int64_t>(values.size());
  T& value = values[below(random, size)];
  switch (below(random, 5)) {
    case 0:
      value = chance(random, 50) ? Limits::min() : Limits::max();
      return;
    case 1:
      value = static_cast<T>(random());
      return;
    case 2:
      std::swap(value, values[below(random, size)]);
      return;
    default:  // unsigned, because the sum may wrap
      value = static_cast<T>(static_cast<uint64_t>(value) + random() % 5 - 2);
  }
}

// Returns the values, half of the time with one or two of them replaced.
template <typename T>
std::vector<T> mutated(Random& random, const std::vector<T>& values) {
  std::vector<T> copy(values);  // its capacity is its size
  if (values.empty() || chance(random, 50)) return copy;
  for (int64_t n = 1 + below(random, 2); n > 0; --n) replace_one(random, copy);
  return copy;
}

template <typename T>
std::vector<T> random_offsets(Random& random, int64_t longest) {
  std::vector<T> offsets(1, 0);
  for (int64_t i = below(random, longest); i > 0; --i) {
    offsets.push_back(offsets.back() + static_cast<T>(below(random, 4)));
  }
  return offsets;
}

template <typename T, typename Check>
void fuzz_offsets(Random& random, int64_t longest, Check check) {
  const std::vector<T> intact = random_offsets<T>(random, longest);
  const int64_t members = chance(random, 10) ? below(random, 50) : intact.back();
  const std::vector<T> offsets = mutated(random, intact);
  const bool nonempty = chance(random, 50);
  const auto unlike = [&](T one, T next) { return nonempty ? one >= next : one > next; };
  const bool right = offsets.front() == 0 && offsets.back() == members &&
                     std::adjacent_find(offsets.begin(), offsets.end(), unlike) == offsets.end();
  const auto groups = static_cast<int64_t>(offsets.size()) - 1;
  expect(random, right, groups, [&](int32_t threads, int64_t* fault) {
    return check(offsets.data(), groups, members, nonempty, threads, fault);
  });
}

template <typename Offset, typename Value, typename Check>
void fuzz_groups(Random& random, int64_t longest, Check check) {
  std::vector<Offset> offsets = random_offsets<Offset>(random, longest);
  std::vector<Value> values;
  for (size_t g = 1; g < offsets.size(); ++g) {
    int64_t value = below(random, 20);
    for (Offset i = offsets[g - 1]; i < offsets[g]; ++i, value += 1 + below(random, 12)) {
      values.push_back(static_cast<Value>(value));
    }
  }
  values = mutated(random, values);
  // With many offsets, wrong ones would make the check below quadratic.
  if (longest < 100) offsets = mutated(random, offsets);
  const int64_t greatest = 60 + below(random, 20);
  const auto count = static_cast<int64_t>(values.size());
  const auto groups = static_cast<int64_t>(offsets.size()) - 1;
  bool right = true;
  for (int64_t g = 0; g < groups && right; ++g) {
    right = 0 <= offsets[g] && offsets[g] <= offsets[g + 1] && offsets[g + 1] <= count;
    for (int64_t i = offsets[g]; right && i < offsets[g + 1]; ++i) {
      const auto value = static_cast<int64_t>(values[i]);
      right = 0 <= value && value <= greatest && (i == offsets[g] || values[i] > values[i - 1]);
    }
  }
  expect(random, right, std::max(groups, count), [&](int32_t threads, int64_t* fault) {
    return check(offsets.data(), groups, values.data(), count, greatest, threads, fault);
  });
}

// All rules ascend, so that those between any two offsets do, too.
void fuzz_rules_of_ads(Random& random, int64_t longest) {
  std::vector<int64_t> ad_offsets(1, 0);
  std::vector<int32_t> rule_offsets(1, 0);
  std::vector<int32_t> ad_rule;
  std::vector<int32_t> rules;
  for (int64_t leaf = below(random, longest); leaf > 0; --leaf) {
    const auto first = static_cast<int64_t>(rules.size());
    const int64_t own = 1 + below(random, 4);
    for (int64_t n = 0; n < own; ++n) {
      const int32_t last = rules.empty() ? 0 : rules.back();
      rules.push_back(last + 1 + static_cast<int32_t>(below(random, 3)));
    }
    for (int64_t n = below(random, 5); n > 0; --n) {
      ad_rule.push_back(rules[first + below(random, own)]);
    }
    rule_offsets.push_back(static_cast<int32_t>(rules.size()));
    ad_offsets.push_back(static_cast<int64_t>(ad_rule.size()));
  }
  const auto ads = static_cast<int64_t>(ad_rule.size());
  const auto count = static_cast<int64_t>(rules.size());
  const auto leaves = static_cast<int64_t>(ad_offsets.size()) - 1;
  if (longest < 100) {  // as in fuzz_groups
    ad_offsets = mutated(random, ad_offsets);
    rule_offsets = mutated(random, rule_offsets);
  }
  ad_rule = mutated(random, ad_rule);
  const auto is_right = [&](int64_t leaf) {
    const int64_t first = ad_offsets[leaf];
    const int64_t last = ad_offsets[leaf + 1];
    const int64_t begin = rule_offsets[leaf];
    const int64_t end = rule_offsets[leaf + 1];
    if (first < 0 || last < first || last > ads) return false;
    if (begin < 0 || end < begin || end > count) return false;
    for (int64_t ad = first; ad < last; ++ad) {
      const auto from = rules.begin() + begin;
      if (std::count(from, rules.begin() + end, ad_rule[ad]) == 0) return false;
    }
    return true;
  };
  bool right = true;
  for (int64_t leaf = 0; leaf < leaves; ++leaf) right = right && is_right(leaf);
  expect(random, right, std::max(ads, leaves), [&](int32_t threads, int64_t* fault) {
    return grace_check_rules_of_ads(ad_offsets.data(), leaves, ad_rule.data(), ads,
                                    rule_offsets.data(), rules.data(), count, threads, fault);
  });
}

void fuzz_ids(Random& random, int64_t longest) {
  const int64_t count = 1 + below(random, longest), stride = 1 + below(random, 3);
  const int64_t first = below(random, stride);
  std::vector<int32_t> ids(count * stride);
  for (int32_t& id : ids) id = static_cast<int32_t>(5 + below(random, 50));
  ids = mutated(random, ids);
  bool right = true;
  for (int64_t at = first; at < count * stride; at += stride) {
    right = right && 5 <= ids[at] && ids[at] < 55;
  }
  expect(random, right, count, [&](int32_t threads, int64_t* fault) {
    return grace_check_ids(ids.data() + first, count, stride, 5, 55, threads, fault);
  });
}

void fuzz_ascending(Random& random, int64_t longest) {
  std::vector<int64_t> ids(below(random, longest));
  int64_t id = below(random, 3) - 1;
  for (int64_t& each : ids) each = id += 1 + below(random, 3);
  ids = mutated(random, ids);
  const auto unlike = [](int64_t one, int64_t next) { return one >= next; };
  const bool right = (ids.empty() || ids.front() >= 0) &&
                     std::adjacent_find(ids.begin(), ids.end(), unlike) == ids.end();
  const auto count = static_cast<int64_t>(ids.size());
  expect(random, right, count, [&](int32_t threads, int64_t* fault) {
    return grace_check_ascending(ids.data(), count, threads, fault);
  });
}

void fuzz_tables(Random& random) {
  const int64_t rows = below(random, 30), words = int64_t{1} << below(random, 4);
  const int64_t hashes = 1 + below(random, 4);
  const uint64_t star_hash = random();
  std::vector<uint64_t> table(rows * words);
  std::vector<uint8_t> star(rows);
  const auto bit_of = [&](int64_t i) { return (star_hash >> (16 * i)) % (64 * words); };
  for (int64_t row = 0; row < rows; ++row) {
    star[row] = static_cast<uint8_t>(below(random, 2));
    for (int64_t i = 0; star[row] != 0 && i < hashes; ++i) {
      table[row * words + bit_of(i) / 64] |= uint64_t{1} << (bit_of(i) % 64);
    }
  }
  table = mutated(random, table);
  star = mutated(random, star);
  const int64_t used = below(random, 65);
  bool stars_right = true, padding_right = true;
  for (int64_t row = 0; row < rows; ++row) {
    bool contained = true;
    for (int64_t i = 0; i < hashes; ++i) {
      contained = contained && (table[row * words + bit_of(i) / 64] >> (bit_of(i) % 64) & 1) != 0;
    }
    stars_right = stars_right && star[row] == (contained ? 1 : 0);
    const uint64_t last = table[row * words + words - 1];
    padding_right = padding_right && (used == 64 || last >> used == 0);
  }
  expect(random, stars_right, rows, [&](int32_t threads, int64_t* fault) {
    return grace_check_stars(table.data(), star.data(), rows, 64 * words, hashes, star_hash,
                             threads, fault);
  });
  expect(random, padding_right, rows, [&](int32_t threads, int64_t* fault) {
    return grace_check_padding(table.data(), rows, words, 64 * (words - 1) + used, threads, fault);
  });
}

void fuzz_lookup(Random& random, int64_t longest) {
  const int64_t ads = below(random, longest);
  std::vector<int64_t> ad_ids(ads);
  std::vector<int32_t> order(ads);
  for (int64_t i = 0; i < ads; ++i) order[i] = static_cast<int32_t>(i);
  std::shuffle(order.begin(), order.end(), random);
  for (int64_t i = 0, id = 0; i < ads; ++i) ad_ids[order[i]] = id += 1 + below(random, 9);
  ad_ids = mutated(random, ad_ids);
  order = mutated(random, order);
  bool right = true;
  for (int64_t i = 0; i < ads && right; ++i) {
    right = 0 <= order[i] && order[i] < ads && (i == 0 || ad_ids[order[i]] > ad_ids[order[i - 1]]);
  }
  expect(random, right, ads, [&](int32_t threads, int64_t* fault) {
    return grace_check_lookup(ad_ids.data(), order.data(), ads, threads, fault);
  });
}

void fuzz_weights(Random& random, int64_t longest) {
  std::vector<float> weights(below(random, longest));
  for (float& weight : weights) weight = static_cast<float>(below(random, 99)) - 50;
  if (!weights.empty() && chance(random, 50)) {
    const auto bits = static_cast<uint32_t>(random() | random());
    std::memcpy(&weights[below(random, static_cast<int64_t>(weights.size()))], &bits, sizeof bits);
  }
  const auto finite = [](float weight) { return std::isfinite(weight); };
  const bool right = std::all_of(weights.begin(), weights.end(), finite);
  const auto count = static_cast<int64_t>(weights.size());
  expect(random, right, count, [&](int32_t threads, int64_t* fault) {
    return grace_check_finite(weights.data(), count, threads, fault);
  });
}

void fuzz_strings(Random& random, int64_t longest) {
  static const char* const kLetters[] = {"a", "/", "\xC2\x80", "\xED\x9F\xBF", "\xF4\x8F\xBF\xBF"};
  std::vector<std::string> sorted(below(random, longest / 4 + 1));
  for (std::string& each : sorted) {
    for (int64_t n = 1 + below(random, 6); n > 0; --n) each += kLetters[below(random, 5)];
  }
  std::sort(sorted.begin(), sorted.end());
  sorted.erase(std::unique(sorted.begin(), sorted.end()), sorted.end());
  std::vector<int64_t> offsets(1, 0);
  std::vector<uint8_t> utf8;
  for (const std::string& each : sorted) {
    utf8.insert(utf8.end(), each.begin(), each.end());
    offsets.push_back(static_cast<int64_t>(utf8.size()));
  }
  utf8 = mutated(random, utf8);
  if (longest < 100) offsets = mutated(random, offsets);
  const auto bytes = static_cast<int64_t>(utf8.size());
  const auto count = static_cast<int64_t>(offsets.size()) - 1;
  bool right = true;
  std::string before;
  for (int64_t i = 0; i < count && right; ++i) {
    right = 0 <= offsets[i] && offsets[i] <= offsets[i + 1] && offsets[i + 1] <= bytes;
    if (!right) break;
    const std::string text(utf8.begin() + offsets[i], utf8.begin() + offsets[i + 1]);
    right = grace::is_utf8(text) && (i == 0 || before < text);
    before = text;
  }
  expect(random, right, count, [&](int32_t threads, int64_t* fault) {
    return grace_check_strings(offsets.data(), count, utf8.data(), bytes, threads, fault);
  });
}

}  // namespace

int main(int argc, char** argv) {
  return fuzz::run("fuzz_structure", argc, argv, [](Random& random) {
    // Rarely arrays that are long enough to be checked in chunks.
    const int64_t longest = below(random, 400) == 0 ? 70'000 : 40;
    fuzz_offsets<int32_t>(random, longest, grace_check_offsets_i32);
    fuzz_offsets<int64_t>(random, longest, grace_check_offsets_i64);
    fuzz_groups<int32_t, uint16_t>(random, longest, grace_check_groups_i32_u16);
    fuzz_groups<int32_t, int32_t>(random, longest, grace_check_groups_i32_i32);
    fuzz_groups<int64_t, int32_t>(random, longest, grace_check_groups_i64_i32);
    fuzz_groups<int64_t, int64_t>(random, longest, grace_check_groups_i64_i64);
    fuzz_rules_of_ads(random, longest);
    fuzz_ids(random, longest);
    fuzz_ascending(random, longest);
    fuzz_tables(random);
    fuzz_lookup(random, longest);
    fuzz_weights(random, longest);
    fuzz_strings(random, longest);
  });
}
