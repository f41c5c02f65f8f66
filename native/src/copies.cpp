// The first of equal spans over many tables that need not fit into memory together: one part of
// the hashes at a time, so that a call holds the distinct spans of its part and nothing else.
#include <cstdint>
#include <memory>
#include <vector>

#include "grace/abi.h"
#include "grace/interner.h"

namespace {

struct Copies {
  int64_t parts;
  int64_t part;
  grace::Interner<uint32_t> spans;
  std::vector<int32_t> first;  // by id: the place of the first copy
};

}  // namespace

GRACE_API int32_t grace_copies_new(int64_t parts, int64_t part, void** copies) {
  return grace::guarded([&] {
    grace::require(0 <= part && part < parts, "copies_new: no such part");
    *copies = std::make_unique<Copies>(Copies{parts, part, {}, {}}).release();
  });
}

GRACE_API int32_t grace_copies_free(void* copies) {
  return grace::guarded([&] { delete static_cast<Copies*>(copies); });
}

// Spans at places first_place, first_place + 1, ..: words[offsets[i] : offsets[i + 1]], or `width`
// words each where offsets is null. first_of int32 [count] receives the place of the first equal
// span of all calls so far; entries of other parts are left as they are.
GRACE_API int32_t grace_copies_add(void* copies, int64_t count, const int64_t* offsets,
                                   int64_t width, const uint32_t* words, int32_t first_place,
                                   int32_t* first_of) {
  return grace::guarded([&] {
    Copies& all = *static_cast<Copies*>(copies);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t begin = offsets == nullptr ? i * width : offsets[i];
      const int64_t length = offsets == nullptr ? width : offsets[i + 1] - begin;
      const uint32_t hash = grace::hash_span(words + begin, length);
      // The upper bits choose the part: the lower ones choose the interner's slots.
      if (static_cast<int64_t>((uint64_t{hash} * all.parts) >> 32) != all.part) continue;
      const int32_t id = all.spans.find_or_add(words + begin, length, hash);
      if (id == static_cast<int32_t>(all.first.size())) {
        all.first.push_back(static_cast<int32_t>(first_place + i));
      }
      first_of[i] = all.first[id];
    }
  });
}
