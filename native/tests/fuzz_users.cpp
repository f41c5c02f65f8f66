// Requests of users written at random, whole and spoilt: what every head, fault and batch of rows
// satisfies.
//
// Messages are exact-size heap blocks, so that the sanitizers see every read beyond them.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "fuzz_driver.h"

extern "C" {
int32_t grace_request_read(const char*, int64_t, const int64_t*, int64_t*, int64_t*);
int32_t grace_request_excluded(const char*, int64_t, int64_t, int64_t*);
int32_t grace_users_open(int64_t, uint64_t, uint64_t*);
int32_t grace_users_add_attribute(uint64_t, const char*, int64_t, int64_t, const int64_t*,
                                  const uint8_t*, int64_t);
int32_t grace_users_add_set(uint64_t, const char*, int64_t, const int64_t*, const uint8_t*,
                            int64_t);
int32_t grace_users_close(uint64_t);
int32_t grace_users_read(uint64_t, int64_t, int64_t, const char* const*, const int64_t*, uint64_t*,
                         int32_t*, uint64_t*, int32_t*, int32_t*, int64_t*, int64_t, int64_t*,
                         int64_t*);
}

namespace {

using fuzz::below;
using fuzz::chance;
using fuzz::Random;

constexpr int64_t kWords = 2;
constexpr int64_t kSets = 2;
constexpr int64_t kMost = 5;

struct Texts {
  std::vector<int64_t> offsets = {0};
  std::vector<uint8_t> utf8;

  explicit Texts(const std::vector<std::string>& texts) {
    for (const std::string& text : texts) {
      utf8.insert(utf8.end(), text.begin(), text.end());
      offsets.push_back(static_cast<int64_t>(utf8.size()));
    }
    utf8.shrink_to_fit();
  }
  int64_t count() const { return static_cast<int64_t>(offsets.size()) - 1; }
};

struct Schema {
  uint64_t handle = 0;
  Texts countries{{"NO", "US"}};
  Texts places{{"", "la", "sf", std::string(128, 'x'), std::string(129, 'y')}};

  Schema() {
    EXPECT(grace_users_open(kWords, 7, &handle) == 0);
    const auto attribute = [&](const char* name, int64_t first, int64_t missing) {
      return grace_users_add_attribute(handle, name, first, countries.count(),
                                       countries.offsets.data(), countries.utf8.data(), missing);
    };
    EXPECT(attribute("country", 63, 65) == 0);
    EXPECT(attribute("country", 0, 0) != 0);
    EXPECT(attribute("beyond", 126, 0) != 0);
    for (const char* name : {"location", "audience"}) {
      EXPECT(grace_users_add_set(handle, name, places.count(), places.offsets.data(),
                                 places.utf8.data(), kMost) == 0);
    }
  }

  ~Schema() { grace_users_close(handle); }
};

std::string varint(uint64_t value) {
  std::string bytes;
  for (; value > 0x7f; value >>= 7) bytes.push_back(static_cast<char>(value | 0x80));
  bytes.push_back(static_cast<char>(value));
  return bytes;
}

std::string field(int number, const std::string& content) {
  return varint(static_cast<uint64_t>(number) << 3 | 2) + varint(content.size()) + content;
}

std::string value(Random& random) {
  switch (below(random, 6)) {
    case 0:
      return "US";
    case 1:
      return "sf";
    case 2:
      return "\xc3\xa9";
    case 3:
      return chance(random, 80) ? "" : "*";
    default:
      return std::string(static_cast<size_t>(below(random, 1500)), 'x');
  }
}

std::string user(Random& random) {
  std::string message;
  for (const char* name : {"country", "location", "audience", "mood"}) {
    if (chance(random, 30)) continue;
    std::string values;
    for (int64_t n = below(random, 7); n > 0; --n) values += field(1, value(random));
    message += field(4, field(1, name) + field(2, values));
  }
  return message;
}

std::string spoilt(Random& random, std::string bytes) {
  for (int64_t n = 1 + below(random, 3); n > 0 && !bytes.empty(); --n) {
    const auto at = static_cast<size_t>(below(random, static_cast<int64_t>(bytes.size())));
    switch (below(random, 4)) {
      case 0:
        bytes[at] = static_cast<char>(random());
        break;
      case 1:
        bytes.erase(at, 1);
        break;
      case 2:
        bytes.insert(at, 1, static_cast<char>(chance(random, 50) ? 0xff : random()));
        break;
      default:
        if (chance(random, 20)) bytes.resize(at);
    }
  }
  return bytes;
}

constexpr int64_t kFaultNumbers = 9;
constexpr int64_t kFaults = 24;
constexpr int64_t kFields = 28;
constexpr int64_t kUnknown = 3;

void check_span(const int64_t* span, int64_t size) {
  EXPECT(0 <= span[0] && 0 <= span[1] && span[0] + span[1] <= size);
}

void check_fault(const int64_t* fault, int64_t size) {
  EXPECT(0 <= fault[0] && fault[0] < kFaults && 0 <= fault[1] && fault[1] < kFields);
  check_span(fault + 2, size);
  check_span(fault + 4, size);
}

void check_message(Random& random, const std::vector<char>& message, bool whole) {
  const int64_t most = chance(random, 10) ? below(random, 4) : 1000;
  const int64_t limits[] = {9, 2000, most, most, 1000, 1000, 3, 1000, 2};
  int64_t head[13];
  int64_t fault[kFaultNumbers];
  const auto size = static_cast<int64_t>(message.size());
  EXPECT(grace_request_read(message.data(), size, limits, head, fault) == 0);
  check_fault(fault, size);
  for (int text = 0; text < 5; ++text) check_span(head + 2 * text, size);
  EXPECT(0 <= head[10] && head[10] < (int64_t{1} << 32) && (head[11] == 0 || head[11] == 1));
  EXPECT(0 <= head[12] && head[12] <= size);
  if (whole && most == 1000) EXPECT(fault[0] == 0 && head[0] == 2 && head[1] == 1);
  if (fault[0] == 1) return;
  std::vector<int64_t> excluded(static_cast<size_t>(head[12]));
  EXPECT(grace_request_excluded(message.data(), size, head[12], excluded.data()) == 0);
}

void check_set(const Schema& schema, int64_t s, int64_t size, const int32_t* offsets,
               const int32_t* value_offsets, const int32_t* value_ids) {
  const int32_t* own = offsets + s * (size + 1);
  const int32_t* ids = value_offsets + s * (size + 1);
  EXPECT(own[0] == 0 && ids[0] == 0);
  for (int64_t b = 0; b < size; ++b) {
    EXPECT(own[b] <= own[b + 1] && own[b + 1] - own[b] <= kMost);
    EXPECT(ids[b] <= ids[b + 1] && ids[b + 1] - ids[b] <= own[b + 1] - own[b]);
    const int32_t* first = value_ids + s * size * kMost;
    for (int32_t i = ids[b]; i < ids[b + 1]; ++i) {
      EXPECT(0 <= first[i] && first[i] < schema.places.count());
      EXPECT(i == ids[b] || first[i - 1] < first[i]);
    }
  }
}

void check_rows(const Schema& schema, const std::vector<std::vector<char>>& messages,
                int64_t size) {
  const auto requests = static_cast<int64_t>(messages.size());
  std::vector<const char*> pointers;
  std::vector<int64_t> sizes;
  for (const auto& message : messages) {
    pointers.push_back(message.data());
    sizes.push_back(static_cast<int64_t>(message.size()));
  }
  const auto room = static_cast<size_t>(kSets * size * kMost);
  auto bitmask = std::make_unique<uint64_t[]>(static_cast<size_t>(size * kWords));
  auto offsets = std::make_unique<int32_t[]>(static_cast<size_t>(kSets * (size + 1)));
  auto hashes = std::make_unique<uint64_t[]>(room);
  auto value_offsets = std::make_unique<int32_t[]>(static_cast<size_t>(kSets * (size + 1)));
  auto value_ids = std::make_unique<int32_t[]>(room);
  auto faults = std::make_unique<int64_t[]>(static_cast<size_t>(requests * kFaultNumbers));
  auto unknown = std::make_unique<int64_t[]>(kUnknown * 5);
  auto ends = std::make_unique<int64_t[]>(static_cast<size_t>(requests));
  EXPECT(grace_users_read(schema.handle, requests, size, pointers.data(), sizes.data(),
                          bitmask.get(), offsets.get(), hashes.get(), value_offsets.get(),
                          value_ids.get(), faults.get(), kUnknown, unknown.get(), ends.get()) == 0);
  for (int64_t s = 0; s < kSets; ++s) {
    check_set(schema, s, size, offsets.get(), value_offsets.get(), value_ids.get());
  }
  for (int64_t b = 0; b < size; ++b) {
    const uint64_t* row = bitmask.get() + b * kWords;
    EXPECT((row[0] & ~(uint64_t{1} << 63)) == 0 && (row[1] & ~uint64_t{3}) == 0);
    EXPECT(row[0] != 0 || row[1] != 0);
  }
  for (int64_t b = 0; b < requests; ++b) {
    check_fault(faults.get() + b * kFaultNumbers, sizes[static_cast<size_t>(b)]);
    const int64_t begin = b == 0 ? 0 : ends[b - 1];
    EXPECT(begin <= ends[b]);
    for (int64_t i = begin; i < std::min(ends[b], kUnknown); ++i) {
      check_span(unknown.get() + 5 * i + 1, sizes[static_cast<size_t>(b)]);
    }
  }
}

void run_once(Random& random, const Schema& schema) {
  std::vector<std::vector<char>> messages;
  for (int64_t n = below(random, 5); n > 0; --n) {
    const bool whole = chance(random, 40);
    const std::string written = user(random);
    const std::string all = "\x0a\x01r" + written + "\x30\x07\x48\x05";
    const std::string message = whole ? all : spoilt(random, all);
    messages.emplace_back(message.begin(), message.end());
    check_message(random, messages.back(), whole);
  }
  const auto requests = static_cast<int64_t>(messages.size());
  check_rows(schema, messages, requests + 1 + below(random, 3));
}

}  // namespace

int main(int argc, char** argv) {
  const Schema schema;
  return fuzz::run("fuzz_users", argc, argv, [&](Random& random) { run_once(random, schema); });
}
