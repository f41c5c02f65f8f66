// The tables and integer keys of the GPU's kernels, against the definitions.
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "fuzz_driver.h"
#include "grace/bloom_tables.h"
#include "grace/match.h"
#include "grace/score_keys.h"

namespace {

using fuzz::below;
using fuzz::chance;
using fuzz::Random;

std::vector<uint64_t> random_words(Random& random, int64_t count, int64_t bits_of_8) {
  std::vector<uint64_t> words(static_cast<size_t>(count));
  for (uint64_t& word : words) {
    for (int bit = 0; bit < 64; ++bit) {
      word |= static_cast<uint64_t>(below(random, 8) < bits_of_8) << bit;
    }
  }
  return words;
}

std::vector<uint64_t> tables_of(const std::vector<uint64_t>& queries, grace::BloomShape shape) {
  std::vector<uint64_t> tables(static_cast<size_t>(grace::bloom_table_entries(shape.bits)));
  for (size_t at = 0; at < tables.size(); ++at) {
    tables[at] = grace::bloom_table_entry(queries.data(), static_cast<int64_t>(queries.size()),
                                          shape, static_cast<uint32_t>(at / grace::kNibbleValues),
                                          static_cast<uint32_t>(at % grace::kNibbleValues));
  }
  return tables;
}

void tables_and_queries_agree(Random& random) {
  const grace::BloomShape shape{uint32_t{64} << below(random, 5),
                                static_cast<uint32_t>(1 + below(random, 4))};
  std::vector<uint64_t> queries(static_cast<size_t>(below(random, 65)));
  for (uint64_t& query : queries) query = random();
  const std::vector<uint64_t> tables = tables_of(queries, shape);
  for (int row_number = 0; row_number < 63; ++row_number) {
    std::vector<uint64_t> row = random_words(random, shape.bits / 64, below(random, 9));
    // A row that contains one of them, or all but one of its bits.
    const size_t some = static_cast<size_t>(below(random, 1 + queries.size()));
    if (some < queries.size() && chance(random, 50)) {
      for (uint32_t i = 0; i < shape.hashes; ++i) {
        const uint32_t bit = grace::bloom_bit(queries[some], i, shape);
        row[bit / 64] |= uint64_t{1} << (bit % 64);
      }
      if (chance(random, 50)) {
        const uint32_t bit = grace::bloom_bit(queries[some], 0, shape);
        row[bit / 64] &= ~(uint64_t{1} << (bit % 64));
      }
    }
    const bool expected = grace::contains_any(row.data(), false, queries.data(),
                                              static_cast<int64_t>(queries.size()), shape);
    EXPECT(grace::tables_contain_any(row.data(), shape.bits / 64, tables.data()) == expected);
  }
}

// Tests every row of 8 bits, and every pair of bits that a query may have there.
void small_rows_are_exact() {
  const grace::BloomShape shape{64, 2};
  for (uint64_t first = 0; first < 8; ++first) {
    for (uint64_t second = 0; second < 8; ++second) {
      const std::vector<uint64_t> queries{first | second << 16};
      const std::vector<uint64_t> tables = tables_of(queries, shape);
      for (uint64_t row = 0; row < 256; ++row) {
        const bool expected = (row >> first & 1) != 0 && (row >> second & 1) != 0;
        EXPECT(grace::tables_contain_any(&row, 1, tables.data()) == expected);
      }
    }
  }
}

float random_score(Random& random) {
  if (chance(random, 5)) return 0.0f;
  if (chance(random, 5)) return -0.0f;
  if (chance(random, 5)) return std::numeric_limits<float>::infinity();
  if (chance(random, 5)) return -std::numeric_limits<float>::denorm_min();
  float score;
  do {
    score = grace::bits_float(static_cast<uint32_t>(random()));
  } while (std::isnan(score));
  return chance(random, 50) ? score : static_cast<float>(below(random, 1000)) / -64.0f;
}

void keys_sort_as_scores_do(Random& random) {
  for (int i = 0; i < 1000; ++i) {
    const float one = random_score(random), other = random_score(random);
    EXPECT((grace::score_key(one) < grace::score_key(other)) == (one > other));
    EXPECT((grace::score_key(one) == grace::score_key(other)) == (one == other));
    EXPECT(grace::score_of_key(grace::score_key(one)) == one);
  }
  const uint32_t beam = static_cast<uint32_t>(below(random, 65535));
  const uint32_t place = static_cast<uint32_t>(below(random, 65535));
  EXPECT(grace::candidate_place(beam, place) < grace::candidate_place(beam, place + 1));
  EXPECT(grace::candidate_place(beam, 65535) < grace::candidate_place(beam + 1, 0));
  const uint32_t key = grace::score_key(random_score(random));
  EXPECT(grace::candidate_key(key, 0xffffffffu) < grace::candidate_key(key + 1, 0));
}

// Windows keep the order of keys, and the last key of a window is in that window.
void windows_keep_the_order(Random& random) {
  for (int i = 0; i < 1000; ++i) {
    const uint32_t one = grace::score_key(random_score(random));
    const uint32_t other = grace::score_key(random_score(random));
    const uint32_t place = grace::window_of_key(one);
    EXPECT(one > other || place <= grace::window_of_key(other));
    const uint32_t last = grace::key_of_window(place);
    EXPECT(one <= last && grace::window_of_key(last) == place);
    EXPECT(last == 0xffffffffu || grace::window_of_key(last + 1) > place);
  }
}

}  // namespace

int main(int argc, char** argv) {
  small_rows_are_exact();
  return fuzz::run("fuzz_gpu_logic", argc, argv, [](Random& random) {
    tables_and_queries_agree(random);
    keys_sort_as_scores_do(random);
    windows_keep_the_order(random);
  });
}
