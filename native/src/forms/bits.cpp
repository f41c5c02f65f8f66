// The form `bits`: a row has the values of all attributes that a rule allows, one bit each, and a
// request the values that its user has. It passes a row that has all of its bits.
#include <cstdint>
#include <memory>

#include "grace/abi.h"
#include "grace/component.h"
#include "grace/match.h"

namespace grace::exact {

namespace {

class Bits : public Component {
 public:
  Bits(int32_t words, const uint64_t* table) : words_(words), table_(table) {}

  void require_valid(const void*, int64_t) const override {}

  // `asked` are the users' rows, uint64 [requests, words].
  void test(const void* asked, int64_t request, const std::vector<uint64_t>&, const int32_t* rows,
            int32_t count, bool* passes) const override {
    const uint64_t* user = static_cast<const uint64_t*>(asked) + request * words_;
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

}  // namespace

// table uint64 [rows, words]; it must outlive the handle.
GRACE_API int32_t grace_exact_add_bits(uint64_t handle, const int32_t* ids, int64_t stride,
                                       int32_t words, const uint64_t* table) {
  return guarded(
      [&] { add_component(handle, {ids, stride, std::make_unique<Bits>(words, table)}); });
}

}  // namespace grace::exact
