// Reads what requests ask, the maps `user` and `filters` of grace.v1.RetrieveRequest and the time,
// from the bytes into the arrays of the components' forms. A handle holds a schema; a call reads a
// batch.
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "grace/user_form.h"
#include "grace/wire_batch.h"

namespace grace::users {

namespace {

using wire::Entry;
using wire::Field;
using wire::Spans;
using wire::UnknownNames;

constexpr uint64_t kAsked =
    bit_of(Field::kUser) | bit_of(Field::kFilters) | bit_of(Field::kAt) | bit_of(Field::kUtcOffset);

class Users {
 public:
  void add(const std::vector<std::string>& names, std::unique_ptr<const UserForm> form, Field map) {
    firsts_.push_back(names_.size());
    for (const std::string& name : names) names_.add(map, name);
    forms_.push_back(std::move(form));
  }

  // Reads one request into its row of each component, after all rows before it. Its time
  // is `now`, unless it sends another. Throws Fault: that of a declared name comes first.
  void read(const Spans& request, int64_t now, int64_t row, const void* const* rows,
            UnknownNames& unknown) const {
    const int64_t at = request.number(Field::kAt);
    const Moment moment{at == 0 ? now : at, request.number(Field::kUtcOffset)};
    std::vector<const Entry*> others;
    const std::vector<const Entry*> entries =
        names_.find(request, {Field::kUser, Field::kFilters}, others);
    for (size_t c = 0; c < forms_.size(); ++c) {
      forms_[c]->read(entries.data() + firsts_[c], moment, row, rows[c]);
    }
    for (const Entry* other : others) {
      for (const Field list : {Field::kUserValues, Field::kFilterAnyOf, Field::kFilterNoneOf}) {
        if (row_of(list).within == other->map) take_texts(*other, list, [](std::string_view) {});
      }
      unknown.add(*other);
    }
  }

 private:
  wire::Names names_;           // component by component
  std::vector<size_t> firsts_;  // the first name of each component
  std::vector<std::unique_ptr<const UserForm>> forms_;
};

Users& users_of(uint64_t handle) { return *reinterpret_cast<Users*>(handle); }

}  // namespace

void add_component(uint64_t handle, const std::vector<std::string>& names,
                   std::unique_ptr<const UserForm> form, Field map) {
  users_of(handle).add(names, std::move(form), map);
}

// Each form of component has a function that adds one, in the schema's order.
GRACE_API int32_t grace_users_open(uint64_t* handle) {
  return guarded([&] { *handle = reinterpret_cast<uint64_t>(new Users()); });
}

GRACE_API int32_t grace_users_close(uint64_t handle) {
  return guarded([&] { delete &users_of(handle); });
}

// Each message is a grace.v1.RetrieveRequest. `rows` has each component's arrays of `size` rows, in
// the words of its form. `now` is the batch's clock, in milliseconds since 1970.
GRACE_API int32_t grace_users_read(uint64_t handle, const wire::Batch* batch, int64_t now,
                                   const void* const* rows) {
  return guarded([&] {
    const Users& users = users_of(handle);
    Workers alone(1, "");  // a row's values follow those of the row before it
    const auto read = [&](const Spans& request, int64_t row, UnknownNames& names) {
      users.read(request, now, row, rows, names);
    };
    wire::read_batch(*batch, kAsked, alone, read);
  });
}

}  // namespace grace::users
