// Mutational fuzzing of the structure checks: arrays that are nearly right, in heap blocks of
// exactly their size, so that the address sanitizer sees a read beyond them; each verdict is
// compared with a plain definition.
//
//   fuzz_structure --seconds 20 --seed 1
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "grace/abi.h"

GRACE_API int32_t grace_check_offsets_i32(const int32_t*, int64_t, int64_t, int32_t, int32_t,
                                          int64_t*);
GRACE_API int32_t grace_check_offsets_i64(const int64_t*, int64_t, int64_t, int32_t, int32_t,
                                          int64_t*);
GRACE_API int32_t grace_check_groups_i32_u16(const int32_t*, int64_t, const uint16_t*, int64_t,
                                             int64_t, int32_t, int64_t*);
GRACE_API int32_t grace_check_groups_i64_i32(const int64_t*, int64_t, const int32_t*, int64_t,
                                             int64_t, int32_t, int64_t*);
GRACE_API int32_t grace_check_groups_i64_i64(const int64_t*, int64_t, const int64_t*, int64_t,
                                             int64_t, int32_t, int64_t*);
GRACE_API int32_t grace_check_ids(const int32_t*, int64_t, int64_t, int64_t, int64_t, int32_t,
                                  int64_t*);
GRACE_API int32_t grace_check_padding(const uint64_t*, int64_t, int64_t, int64_t, int32_t,
                                      int64_t*);
GRACE_API int32_t grace_check_stars(const uint64_t*, const uint8_t*, int64_t, int64_t, int64_t,
                                    uint64_t, int32_t, int64_t*);
GRACE_API int32_t grace_check_lookup(const int64_t*, const int32_t*, int64_t, int32_t, int64_t*);
GRACE_API int32_t grace_check_finite(const float*, int64_t, int32_t, int64_t*);
GRACE_API int32_t grace_check_strings(const int64_t*, int64_t, const uint8_t*, int64_t, int32_t,
                                      int64_t*);

namespace {

// A heap block of exactly the content's size.
template <typename T>
class Block {
 public:
  explicit Block(const std::vector<T>& content) : data_(new T[content.size()]) {
    if (!content.empty()) std::memcpy(data_.get(), content.data(), content.size() * sizeof(T));
  }
  const T* get() const { return data_.get(); }

 private:
  std::unique_ptr<T[]> data_;
};

class Fuzzer {
 public:
  explicit Fuzzer(uint64_t seed) : random_(seed) {}

  void step() {
    // Rarely an array that is long enough to be checked in chunks.
    longest_ = below(400) == 0 ? 70'000 : 40;
    threads_ = static_cast<int32_t>(1 + below(3));
    switch (below(7)) {
      case 0:
        return offsets();
      case 1:
        return groups();
      case 2:
        return ids();
      case 3:
        return tables();
      case 4:
        return lookup();
      case 5:
        return weights();
      default:
        return strings();
    }
  }

 private:
  int64_t below(int64_t limit) { return static_cast<int64_t>(random_() % limit); }

  template <typename T>
  T extreme() {
    switch (below(4)) {
      case 0:
        return std::numeric_limits<T>::min();
      case 1:
        return std::numeric_limits<T>::max();
      case 2:
        return static_cast<T>(below(50) - 5);
      default:
        return static_cast<T>(random_());
    }
  }

  // Half of the time nothing, else a few numbers replaced, nudged or exchanged.
  template <typename T>
  void mutate(std::vector<T>& values) {
    if (values.empty() || below(2) == 0) return;
    const auto size = static_cast<int64_t>(values.size());
    for (int64_t n = 1 + below(2); n > 0; --n) {
      T& value = values[below(size)];
      switch (below(3)) {
        case 0:
          value = extreme<T>();
          break;
        case 1:
          std::swap(value, values[below(size)]);
          break;
        default: {
          // Unsigned, because the nudge may wrap.
          const auto bits = static_cast<uint64_t>(static_cast<int64_t>(value));
          value = static_cast<T>(bits + static_cast<uint64_t>(below(5)) - 2);
        }
      }
    }
  }

  template <typename T>
  std::vector<T> cuts(int64_t groups) {
    std::vector<T> offsets(1, 0);
    for (int64_t i = 0; i < groups; ++i) offsets.push_back(offsets.back() + T(below(4)));
    return offsets;
  }

  void expect(bool right, int32_t status, const int64_t* fault, int64_t count, const char* name) {
    const bool passed = fault[0] == 0;
    const bool placed = passed || (fault[1] >= 0 && fault[1] <= count);
    if (status == 0 && passed == right && placed) return;
    std::fprintf(stderr, "%s: status %d, fault %lld at %lld, expected %s\n", name, status,
                 static_cast<long long>(fault[0]), static_cast<long long>(fault[1]),
                 right ? "none" : "one");
    std::abort();
  }

  template <typename T, typename Check>
  void offsets_of(Check check, const char* name) {
    std::vector<T> offsets = cuts<T>(below(longest_));
    const int64_t members = below(9) == 0 ? below(50) : offsets.back();
    const bool nonempty = below(2) == 0;
    mutate(offsets);
    const auto groups = static_cast<int64_t>(offsets.size()) - 1;
    bool right = offsets[0] == 0 && offsets[groups] == members;
    for (int64_t i = 0; i < groups; ++i) {
      right = right && (nonempty ? offsets[i + 1] > offsets[i] : offsets[i + 1] >= offsets[i]);
      if (!right) break;
    }
    const Block<T> block(offsets);
    int64_t fault[2];
    const int32_t status = check(block.get(), groups, members, nonempty, threads_, fault);
    // A lone offset has no group to be looked at; only its end is checked.
    expect(right, status, fault, groups, name);
  }

  void offsets() {
    offsets_of<int32_t>(grace_check_offsets_i32, "offsets_i32");
    offsets_of<int64_t>(grace_check_offsets_i64, "offsets_i64");
  }

  template <typename Offset, typename Value, typename Check>
  void groups_of(Check check, const char* name) {
    std::vector<Offset> offsets = cuts<Offset>(below(longest_));
    std::vector<Value> values;
    const int64_t greatest = 60 + below(20);
    for (size_t g = 1; g < offsets.size(); ++g) {
      int64_t value = below(20);
      for (Offset i = offsets[g - 1]; i < offsets[g]; ++i, value += 1 + below(12)) {
        values.push_back(static_cast<Value>(value));
      }
    }
    mutate(values);
    // Offsets that lead anywhere would make this quadratic when they are many.
    if (longest_ < 100) mutate(offsets);
    const auto count = static_cast<int64_t>(values.size());
    const auto groups = static_cast<int64_t>(offsets.size()) - 1;
    bool right = true;
    for (int64_t g = 0; g < groups && right; ++g) {
      right = offsets[g] >= 0 && offsets[g + 1] >= offsets[g] && offsets[g + 1] <= count;
      for (int64_t i = offsets[g]; right && i < offsets[g + 1]; ++i) {
        const auto value = static_cast<int64_t>(values[i]);
        right = value >= 0 && value <= greatest && (i == offsets[g] || values[i] > values[i - 1]);
      }
    }
    const Block<Offset> offsets_block(offsets);
    const Block<Value> values_block(values);
    int64_t fault[2];
    const int32_t status =
        check(offsets_block.get(), groups, values_block.get(), count, greatest, threads_, fault);
    expect(right, status, fault, std::max(groups, count), name);
  }

  void groups() {
    groups_of<int32_t, uint16_t>(grace_check_groups_i32_u16, "groups_i32_u16");
    groups_of<int64_t, int32_t>(grace_check_groups_i64_i32, "groups_i64_i32");
    groups_of<int64_t, int64_t>(grace_check_groups_i64_i64, "groups_i64_i64");
  }

  void ids() {
    const int64_t count = below(longest_), stride = 1 + below(3), first = below(stride);
    std::vector<int32_t> ids(count * stride);
    for (int32_t& id : ids) id = static_cast<int32_t>(5 + below(50));
    mutate(ids);
    bool right = true;
    for (int64_t i = 0; i < count; ++i) {
      const int32_t id = ids[i * stride + first];
      right = right && id >= 5 && id < 55;
    }
    const Block<int32_t> block(ids);
    int64_t fault[2];
    const int32_t status = grace_check_ids(block.get() + (count > 0 ? first : 0), count, stride, 5,
                                           55, threads_, fault);
    expect(right, status, fault, count, "ids");
  }

  void tables() {
    const int64_t rows = below(30), hashes = 1 + below(4), bits = int64_t{64} << below(4);
    const uint64_t star_hash = random_();
    std::vector<uint64_t> table(rows * bits / 64);
    std::vector<uint8_t> star(rows);
    for (int64_t row = 0; row < rows; ++row) {
      star[row] = static_cast<uint8_t>(below(2));
      for (int64_t i = 0; star[row] && i < hashes; ++i) {
        const uint64_t bit = (star_hash >> (16 * i)) & static_cast<uint64_t>(bits - 1);
        table[row * bits / 64 + bit / 64] |= uint64_t{1} << (bit % 64);
      }
    }
    mutate(table);
    mutate(star);
    const int64_t words = bits / 64, used = 1 + below(64);
    bool stars_right = true, padding_right = true;
    for (int64_t row = 0; row < rows; ++row) {
      bool contained = true;
      for (int64_t i = 0; i < hashes; ++i) {
        const uint64_t bit = (star_hash >> (16 * i)) & static_cast<uint64_t>(bits - 1);
        contained = contained && ((table[row * words + bit / 64] >> (bit % 64)) & 1) != 0;
      }
      stars_right = stars_right && star[row] == (contained ? 1 : 0);
      const uint64_t last = table[row * words + words - 1];
      padding_right = padding_right && (used == 64 || (last >> used) == 0);
    }
    const Block<uint64_t> table_block(table);
    const Block<uint8_t> star_block(star);
    int64_t fault[2];
    int32_t status = grace_check_stars(table_block.get(), star_block.get(), rows, bits, hashes,
                                       star_hash, threads_, fault);
    expect(stars_right, status, fault, rows, "stars");
    status = grace_check_padding(table_block.get(), rows, words, (words - 1) * 64 + used, threads_,
                                 fault);
    expect(padding_right, status, fault, rows, "padding");
  }

  void lookup() {
    const int64_t ads = below(longest_);
    std::vector<int64_t> ad_ids(ads);
    std::vector<int32_t> order(ads);
    for (int64_t i = 0; i < ads; ++i) order[i] = static_cast<int32_t>(i);
    std::shuffle(order.begin(), order.end(), random_);
    for (int64_t i = 0, id = 0; i < ads; ++i) ad_ids[order[i]] = id += 1 + below(9);
    mutate(ad_ids);
    mutate(order);
    bool right = true;
    for (int64_t i = 0; i < ads && right; ++i) {
      right = order[i] >= 0 && order[i] < ads;
      right = right && (i == 0 || ad_ids[order[i]] > ad_ids[order[i - 1]]);
    }
    const Block<int64_t> ids_block(ad_ids);
    const Block<int32_t> order_block(order);
    int64_t fault[2];
    const int32_t status =
        grace_check_lookup(ids_block.get(), order_block.get(), ads, threads_, fault);
    expect(right, status, fault, ads, "lookup");
  }

  void weights() {
    std::vector<uint32_t> bits(below(longest_));
    for (uint32_t& each : bits) each = static_cast<uint32_t>(random_()) & 0xBFFFFFFF;
    mutate(bits);
    std::vector<float> weights(bits.size());
    bool right = true;
    for (size_t i = 0; i < bits.size(); ++i) {
      std::memcpy(&weights[i], &bits[i], sizeof(float));
      right = right && (bits[i] & 0x7F800000) != 0x7F800000;
    }
    const Block<float> block(weights);
    int64_t fault[2];
    const auto count = static_cast<int64_t>(weights.size());
    const int32_t status = grace_check_finite(block.get(), count, threads_, fault);
    expect(right, status, fault, count, "finite");
  }

  // UTF-8 by decoding and encoding again: what does not come back the same was not well-formed.
  static bool is_utf8(const std::string& text) {
    for (size_t at = 0; at < text.size();) {
      const auto lead = static_cast<uint8_t>(text[at]);
      const int length = lead < 0x80       ? 1
                         : lead >> 5 == 6  ? 2
                         : lead >> 4 == 14 ? 3
                         : lead >> 3 == 30 ? 4
                                           : 0;
      if (length == 0 || at + length > text.size()) return false;
      uint32_t point = length == 1 ? lead : lead & (0x7F >> length);
      for (int i = 1; i < length; ++i) {
        const auto byte = static_cast<uint8_t>(text[at + i]);
        if (byte >> 6 != 2) return false;
        point = point << 6 | (byte & 0x3F);
      }
      const int needed = point < 0x80 ? 1 : point < 0x800 ? 2 : point < 0x10000 ? 3 : 4;
      if (needed != length || point > 0x10FFFF || (point >= 0xD800 && point < 0xE000)) return false;
      at += length;
    }
    return true;
  }

  void strings() {
    // With the first and last characters of each length, and those next to the surrogates.
    static const char* const kLetters[] = {"a",
                                           "/",
                                           "\x7F",
                                           "\xC2\x80",
                                           "\xC3\xA9",
                                           "\xE0\xA0\x80",
                                           "\xED\x9F\xBF",
                                           "\xEE\x80\x80",
                                           "\xF0\x90\x80\x80",
                                           "\xF4\x8F\xBF\xBF"};
    std::vector<std::string> sorted(below(longest_ / 4 + 1));
    for (std::string& each : sorted) {
      for (int64_t n = 1 + below(6); n > 0; --n) each += kLetters[below(10)];
    }
    std::sort(sorted.begin(), sorted.end(),
              [](const std::string& a, const std::string& b) { return a.compare(b) < 0; });
    sorted.erase(std::unique(sorted.begin(), sorted.end()), sorted.end());
    std::vector<int64_t> offsets(1, 0);
    std::vector<uint8_t> utf8;
    for (const std::string& each : sorted) {
      utf8.insert(utf8.end(), each.begin(), each.end());
      offsets.push_back(static_cast<int64_t>(utf8.size()));
    }
    mutate(utf8);
    if (longest_ < 100) mutate(offsets);
    const auto bytes = static_cast<int64_t>(utf8.size());
    const auto count = static_cast<int64_t>(offsets.size()) - 1;
    bool right = true;
    std::string before;
    for (int64_t i = 0; i < count && right; ++i) {
      right = offsets[i] >= 0 && offsets[i] <= offsets[i + 1] && offsets[i + 1] <= bytes;
      if (!right) break;
      const std::string text(utf8.begin() + offsets[i], utf8.begin() + offsets[i + 1]);
      right = is_utf8(text) && (i == 0 || before.compare(text) < 0);
      before = text;
    }
    const Block<int64_t> offsets_block(offsets);
    const Block<uint8_t> utf8_block(utf8);
    int64_t fault[2];
    const int32_t status =
        grace_check_strings(offsets_block.get(), count, utf8_block.get(), bytes, threads_, fault);
    expect(right, status, fault, count, "strings");
  }

  std::mt19937_64 random_;
  int64_t longest_ = 0;
  int32_t threads_ = 1;
};

}  // namespace

int main(int argc, char** argv) {
  double seconds = 10;
  uint64_t seed = 1;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i];
    if (name == "--seconds") seconds = std::atof(argv[i + 1]);
    if (name == "--seed") seed = std::strtoull(argv[i + 1], nullptr, 10);
  }
  Fuzzer fuzzer(seed);
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  int64_t executions = 0;
  while (std::chrono::steady_clock::now() < end) {
    for (int i = 0; i < 100; ++i, ++executions) fuzzer.step();
  }
  std::printf("fuzz_structure: %lld executions, seed %llu\n", static_cast<long long>(executions),
              static_cast<unsigned long long>(seed));
  return 0;
}
