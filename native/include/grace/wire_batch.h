// Batches of requests, each of which fills one row.
#pragma once

#include <algorithm>
#include <functional>
#include <initializer_list>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "grace/parallel.h"
#include "grace/wire_spans.h"

namespace grace::wire {

constexpr int64_t kUnknownNumbers = 5;

// The names of one message that the schema or the model does not declare.
class UnknownNames {
 public:
  explicit UnknownNames(const char* message) : message_(message) {}

  void add(const Entry& entry) {
    int64_t numbers[kFaultNumbers];
    write_fault(entry.fault(Wrong::kNothing, entry.map, 0), message_, numbers);
    numbers_.insert(numbers_.end(), numbers + 1, numbers + 1 + kUnknownNumbers);
  }

  void clear() { numbers_.clear(); }
  int64_t count() const { return static_cast<int64_t>(numbers_.size()) / kUnknownNumbers; }

  // Copies as many as fit.
  void write(int64_t room, int64_t* out) const {
    std::copy_n(numbers_.begin(), std::min(room, count()) * kUnknownNumbers, out);
  }

 private:
  const char* message_;
  std::vector<int64_t> numbers_;
};

// The names of maps that the schema or the model declares, numbered as they are added.
class Names {
 public:
  size_t add(Field map, const std::string& name) {
    const size_t number = declared_.size();
    require(declared_.emplace(name, Declared{map, number}).second, "a name is declared twice");
    return number;
  }

  size_t size() const { return declared_.size(); }

  // The map that a name is declared for, or kNone.
  Field map_of(std::string_view name) const {
    const auto found = declared_.find(name);
    return found == declared_.end() ? Field::kNone : found->second.map;
  }

  // Returns the entry of each declared name, or an empty one. `others` gets the entries of other
  // names, or of other maps than their name's: map by map, in the order of names.
  std::vector<const Entry*> find(const Spans& request, std::initializer_list<Field> maps,
                                 std::vector<const Entry*>& others) const {
    std::vector<const Entry*> entries(declared_.size(), &kNoEntry);
    for (const Field map : maps) {
      for (const Entry& entry : request.entries(map)) {
        const auto found = declared_.find(entry.name);
        const bool declared = found != declared_.end() && found->second.map == map;
        (declared ? entries[found->second.number] : others.emplace_back()) = &entry;
      }
    }
    return entries;
  }

 private:
  struct Declared {
    Field map;
    size_t number;
  };
  std::map<std::string, Declared, std::less<>> declared_;
};

// A batch of messages, each of which fills one row. A message with a fault gets the row of an empty
// message, and empty messages fill the rows from `requests` to `size`. native/wire.py has the same
// layout.
//   faults        [requests, kFaultNumbers]   all 0 for a message without a fault
//   unknown       [unknown_room, kUnknownNumbers]   undeclared names, message by message
//   unknown_ends  [requests]   where each message's names end, with those that did not fit
struct Batch {
  int64_t requests;
  int64_t size;
  int64_t unknown_room;
  const char* const* messages;
  const int64_t* sizes;
  int64_t* faults;
  int64_t* unknown;
  int64_t* unknown_ends;
};

// Passes over these fields of every request and calls read(spans, row, unknown) for its row, in
// order if there is one thread; it may throw Fault.
template <typename Read>
void read_batch(const Batch& batch, uint64_t fields, Workers& workers, Read&& read) {
  std::vector<UnknownNames> unknown(batch.messages, batch.messages + batch.requests);
  workers.run(batch.size, [&](int64_t b) {
    thread_local Spans spans;
    const auto read_row = [&](Reader message, UnknownNames& names) {
      spans.read(message, Field::kRequest, fields);
      read(spans, b, names);
    };
    UnknownNames dropped(nullptr);
    if (b >= batch.requests) return read_row(Reader(), dropped);
    Fault found{Wrong::kNothing};
    try {
      read_row(Reader(batch.messages[b], batch.sizes[b]), unknown[b]);
    } catch (const Fault& fault) {
      found = fault;
      unknown[b].clear();
      read_row(Reader(), dropped);
    }
    write_fault(found, batch.messages[b], batch.faults + b * kFaultNumbers);
  });
  int64_t listed = 0;
  for (int64_t b = 0; b < batch.requests; ++b) {
    const int64_t room = std::max<int64_t>(0, batch.unknown_room - listed);
    unknown[b].write(room, batch.unknown + listed * kUnknownNumbers);
    listed += unknown[b].count();
    batch.unknown_ends[b] = listed;
  }
}

}  // namespace grace::wire
