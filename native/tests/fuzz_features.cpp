// Requests of features written at random, whole and spoilt: what every fault and batch of look-ups
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
int32_t grace_features_open(int64_t, const int64_t*, int64_t, int64_t, int32_t, int32_t, int64_t,
                            const int32_t*, int64_t, const int32_t*, uint64_t*);
int32_t grace_features_add_dense(uint64_t, const char*, int64_t, const float*);
int32_t grace_features_add_categorical(uint64_t, const char*, int64_t, int64_t, int64_t);
int32_t grace_features_add_bag(uint64_t, const char*, uint64_t, int64_t, int64_t, const int64_t*);
int32_t grace_features_add_sequence(uint64_t, const char*, int64_t, int64_t, int64_t, int64_t,
                                    int64_t, const int64_t*);
int32_t grace_features_add_side(uint64_t, const char*, int64_t, int64_t);
int32_t grace_features_read(uint64_t, int64_t, int64_t, const char* const*, const int64_t*, float*,
                            int32_t*, int32_t*, int64_t, int32_t*, int32_t*, int64_t*, int64_t,
                            int64_t*, int64_t*);
int32_t grace_features_close(uint64_t);
}

namespace {

using fuzz::below;
using fuzz::chance;
using fuzz::Random;

constexpr int64_t kVocab[] = {7, 300};
constexpr int64_t kLength = 2;
constexpr int64_t kEvents = 5;
constexpr int64_t kAges = 44;
constexpr int64_t kSideIds = 200;
constexpr int64_t kCategories = 40;
constexpr int64_t kBagRows = 1000;

struct Model {
  uint64_t handle = 0;
  bool packed;
  int64_t places, ids;
  int32_t zeros;

  explicit Model(bool packed_events) : packed(packed_events) {
    places = packed ? 1 + kEvents * kLength + 1 : kEvents;
    ids = packed ? 1 : 2 + kLength + 1;
    zeros = packed ? 400 : static_cast<int32_t>(kLength * 300 + kAges + kEvents + kSideIds + 1);
    const int32_t special[] = {399};
    EXPECT(grace_features_open(kLength, kVocab, places, ids, zeros, packed, 1, special, 1, special,
                               &handle) == 0);
    const int64_t tokens[] = {0, packed ? 7 : 300};
    EXPECT(grace_features_add_sequence(handle, "clicks", kEvents, 0, 600, 600 + kAges, kLength,
                                       tokens) == 0);
    if (packed) return;
    EXPECT(grace_features_add_side(handle, "action", kSideIds, 600 + kAges + kEvents) == 0);
    EXPECT(grace_features_add_side(handle, "action", kSideIds, 0) != 0);
    const float numbers[] = {1.5F, -2.0F};
    const int64_t defaults[] = {5, -6};
    EXPECT(grace_features_add_dense(handle, "hour", 2, numbers) == 0);
    EXPECT(grace_features_add_categorical(handle, "device", kCategories, 1, 0) == 0);
    EXPECT(grace_features_add_bag(handle, "pages", kBagRows, 0, 2, defaults) == 0);
    EXPECT(grace_features_add_bag(handle, "hour", kBagRows, 0, 2, defaults) != 0);
  }

  ~Model() { grace_features_close(handle); }
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

// A length in more bytes than it needs; none takes one of more than five.
std::string long_length(uint64_t value, int64_t bytes) {
  std::string length;
  for (; bytes > 1; --bytes, value >>= 7) length.push_back(static_cast<char>(value | 0x80));
  length.push_back(static_cast<char>(value & 0x7f));
  return length;
}

std::string integers(Random& random, int number, int64_t count, uint64_t bound) {
  std::string pieces;
  std::string packed;
  for (int64_t i = 0; i < count; ++i) {
    const std::string value = varint(bound == 0 ? random() : random() % bound);
    if (chance(random, 10)) {
      pieces += varint(static_cast<uint64_t>(number) << 3) + value;
    } else {
      packed += value;
    }
  }
  return pieces + field(number, packed);
}

std::string entry(int number, const std::string& name, const std::string& message) {
  return field(number, field(1, name) + field(2, message));
}

std::string events(Random& random) {
  const int64_t count = below(random, 3 * kEvents);
  std::string message = integers(random, 1, count * kLength, chance(random, 90) ? 7 : 301);
  if (chance(random, 60)) message += integers(random, 2, count, chance(random, 90) ? 1 << 30 : 0);
  if (chance(random, 60)) {
    message +=
        entry(3, chance(random, 90) ? "action" : "price", integers(random, 1, count, kSideIds));
  }
  return message;
}

std::string features(Random& random) {
  std::string message;
  if (chance(random, 70)) message += entry(4, "clicks", events(random));
  if (chance(random, 70)) message += entry(3, "pages", integers(random, 1, below(random, 30), 0));
  if (chance(random, 70)) message += entry(2, "device", integers(random, 1, 1, kCategories));
  if (chance(random, 70)) message += entry(1, "hour", field(1, std::string(8, '\x3f')));
  if (chance(random, 20)) message += entry(static_cast<int>(1 + below(random, 4)), "mood", "");
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

std::vector<char> block(const std::string& bytes) {
  std::vector<char> exact(bytes.begin(), bytes.end());
  exact.shrink_to_fit();
  return exact;
}

constexpr int64_t kFaultNumbers = 9;
constexpr int64_t kMalformed = 1;
constexpr int64_t kUnknown = 3;

int64_t fault_of(const std::vector<char>& message, int64_t most) {
  const int64_t limits[] = {9, 1000, most, most, 1000, most, 1000, 1000, kLength};
  int64_t head[13];
  int64_t fault[kFaultNumbers];
  const auto size = static_cast<int64_t>(message.size());
  EXPECT(grace_request_read(message.data(), size, limits, head, fault) == 0);
  for (const int name : {2, 4}) EXPECT(0 <= fault[name] && fault[name] + fault[name + 1] <= size);
  return fault[0];
}

void check_message(Random& random, const std::vector<char>& message, bool whole) {
  const int64_t most = chance(random, 10) ? below(random, 4) : 1000;
  const int64_t fault = fault_of(message, most);
  if (whole) EXPECT(fault == 0 || (most < 1000 && fault != kMalformed));
}

void check_length(Random& random) {
  const int64_t size = 1 + below(random, 10);
  const std::string entry = field(1, "hour") + field(2, "");
  const std::vector<char> bytes = block(field(5, "\x0a" + long_length(entry.size(), size) + entry));
  EXPECT(fault_of(bytes, 9) == (size <= 5 ? 0 : kMalformed));
}

void check_rows(const Model& model, const std::vector<std::vector<char>>& messages, int64_t size) {
  const auto requests = static_cast<int64_t>(messages.size());
  std::vector<const char*> pointers;
  std::vector<int64_t> sizes;
  int64_t room = 2 * size;
  for (const auto& message : messages) {
    pointers.push_back(message.data());
    sizes.push_back(static_cast<int64_t>(message.size()));
    room += sizes.back();
  }
  const int64_t bags = model.packed ? 0 : 1;
  auto dense = std::make_unique<float[]>(static_cast<size_t>(2 * size));
  auto categorical = std::make_unique<int32_t[]>(static_cast<size_t>(size));
  auto offsets = std::make_unique<int32_t[]>(static_cast<size_t>(size * bags + 1));
  auto rows = std::make_unique<int32_t[]>(static_cast<size_t>(room));
  const int64_t num_ids = size * model.places * model.ids;
  auto ids = std::make_unique<int32_t[]>(static_cast<size_t>(num_ids));
  auto faults = std::make_unique<int64_t[]>(static_cast<size_t>(requests * kFaultNumbers));
  auto unknown = std::make_unique<int64_t[]>(kUnknown * 5);
  auto ends = std::make_unique<int64_t[]>(static_cast<size_t>(requests));
  EXPECT(grace_features_read(model.handle, requests, size, pointers.data(), sizes.data(),
                             dense.get(), categorical.get(), offsets.get(), room, rows.get(),
                             ids.get(), faults.get(), kUnknown, unknown.get(), ends.get()) == 0);
  EXPECT(offsets[0] == 0);
  for (int64_t i = 0; i < size * bags; ++i) EXPECT(offsets[i] <= offsets[i + 1]);
  for (int32_t i = 0; i < offsets[size * bags]; ++i) EXPECT(0 <= rows[i] && rows[i] < kBagRows);
  for (int64_t i = 0; i < num_ids; ++i) EXPECT(0 <= ids[i] && ids[i] <= model.zeros);
  for (int64_t b = 0; b < requests; ++b) {
    const int64_t begin = b == 0 ? 0 : ends[b - 1];
    EXPECT(begin <= ends[b]);
    for (int64_t i = begin; i < std::min(ends[b], kUnknown); ++i) {
      const int64_t* name = unknown.get() + 5 * i + 1;
      EXPECT(0 <= name[0] && name[0] + name[1] <= sizes[static_cast<size_t>(b)]);
    }
  }
  for (int64_t b = 0; !model.packed && b < size; ++b) {
    EXPECT(0 <= categorical[b] && categorical[b] < kCategories);
  }
}

void run_once(Random& random, const Model& plain, const Model& packed) {
  check_length(random);
  std::vector<std::vector<char>> messages;
  for (int64_t n = below(random, 5); n > 0; --n) {
    const bool whole = chance(random, 40);
    const std::string written = features(random);
    const std::string all = "\x0a\x01r" + field(5, written) + "\x30\x07";
    messages.push_back(block(whole ? all : spoilt(random, all)));
    check_message(random, messages.back(), whole);
  }
  const int64_t size = static_cast<int64_t>(messages.size()) + below(random, 3);
  check_rows(plain, messages, size);
  check_rows(packed, messages, size);
}

}  // namespace

int main(int argc, char** argv) {
  const Model plain(false);
  const Model packed(true);
  return fuzz::run("fuzz_features", argc, argv,
                   [&](Random& random) { run_once(random, plain, packed); });
}
