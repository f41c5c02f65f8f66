// Reads requests' features, grace.v1.Features, from the bytes into the row numbers that
// model/engine/feature_reader.py describes. A handle holds a model's inputs; a call reads a batch.
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "grace/abi.h"
#include "grace/wire_batch.h"

namespace {

namespace wire = grace::wire;
using grace::require;
using grace::Workers;
using wire::Entry;
using wire::Field;
using wire::Spans;
using wire::Wrong;

constexpr int64_t kAgeBuckets = 44;  // model.inputs.AGE_BUCKETS

int32_t row_number(int64_t row) { return static_cast<int32_t>(row); }

// The finaliser of SplitMix64 over an id's two's complement bits: trained tables depend on it.
uint64_t mixed(uint64_t id) {
  id += 0x9E3779B97F4A7C15u;
  id = (id ^ (id >> 30)) * 0xBF58476D1CE4E5B9u;
  id = (id ^ (id >> 27)) * 0x94D049BB133111EBu;
  return id ^ (id >> 31);
}

// 1 + floor(log2(1 + age)), which is how many bits 1 + age has.
int64_t age_bucket(int64_t age) {
  return std::min<int64_t>(64 - __builtin_clzll(static_cast<uint64_t>(age) + 1), kAgeBuckets - 1);
}

bool is_below(int64_t value, int64_t bound) {
  return static_cast<uint64_t>(value) < static_cast<uint64_t>(bound);
}

struct Place {
  Field map;      // of features, which says its kind
  size_t number;  // among the inputs of its kind, in declared order
};

struct Dense {
  std::vector<float> defaults;  // one for each number of the input
};

struct Categorical {
  int64_t cardinality;
  int64_t standard;
  int64_t first_row;
};

struct Bag {
  uint64_t hash_rows;
  int64_t first_row;
  std::vector<int64_t> defaults;
};

struct Side {
  int64_t cardinality;
  int64_t first_row;
};

struct Sequence {
  std::string name;
  int64_t max_length;
  int64_t first_place;
  int64_t age_row;
  int64_t position_row;
  std::vector<int64_t> token_rows;  // the first row of each SID position
  std::map<std::string, size_t, std::less<>> side_names;
  std::vector<Side> side;
};

// Where a row's events are. A packed sequence has neither ages nor positions: its tokens follow
// each other, between prefix and suffix.
struct EventLayout {
  std::vector<int64_t> vocab_sizes;
  int64_t places;
  int64_t ids;    // in each place
  int32_t zeros;  // the row that absent ids read
  bool packed;
  std::vector<int32_t> prefix;
  std::vector<int32_t> suffix;
};

// A batch's arrays, as in FeatureLookups; its numbers are as sent, not squashed. Until all rows are
// read, row b has its bags' ids from room_of[b] on, and their offsets begin there.
struct Rows {
  float* dense;
  int32_t* categorical;
  int32_t* bag_offsets;
  int32_t* bag_rows;
  std::vector<int64_t> room_of;  // one more entry: the end of the last row
  int32_t* events;
};

class Inputs {
 public:
  Inputs(EventLayout layout, int32_t threads)
      : workers(threads, "grace-read"), layout_(std::move(layout)) {}

  // Adds an input to those of one map of features, as grace_features_add describes it.
  void add(Field map, const std::string& name, const std::vector<int64_t>& numbers,
           std::vector<float> defaults) {
    const auto rest = [&](size_t first) {
      require(first <= numbers.size(), "features: an input lacks numbers");
      return std::vector<int64_t>(numbers.begin() + static_cast<int64_t>(first), numbers.end());
    };
    switch (map) {
      case Field::kDense:
        declare(name, {map, dense_.size()});
        numbers_ += static_cast<int64_t>(defaults.size());
        return dense_.push_back({std::move(defaults)});
      case Field::kCategorical:
        declare(name, {map, categorical_.size()});
        return categorical_.push_back({numbers.at(0), numbers.at(1), numbers.at(2)});
      case Field::kBags:
        require(numbers.at(0) > 0, "features: a bag without rows");
        declare(name, {map, bags_.size()});
        bags_.push_back({static_cast<uint64_t>(numbers[0]), numbers.at(1), rest(2)});
        default_ids_ += static_cast<int64_t>(bags_.back().defaults.size());
        return;
      case Field::kSequences:
        return add_sequence(
            {name, numbers.at(0), numbers.at(1), numbers.at(2), numbers.at(3), rest(4), {}, {}});
      case Field::kSides:
        return add_side(name, {numbers.at(0), numbers.at(1)});
      default:
        require(false, "features: no input is in this map");
    }
  }

  // Where each of `size` rows has room for the ids of its bags: an id takes a byte at least.
  std::vector<int64_t> bag_rooms(int64_t size, int64_t requests, const int64_t* bytes) const {
    std::vector<int64_t> room_of(size + 1);
    for (int64_t b = 0; b < size && !bags_.empty(); ++b) {
      room_of[b + 1] = room_of[b] + default_ids_ + (b < requests ? bytes[b] : 0);
    }
    return room_of;
  }

  // Moves the ids of all rows' bags together. Call it after all rows have been read.
  void join_bags(const Rows& rows) const {
    const auto bags = static_cast<int64_t>(bags_.size());
    const auto size = static_cast<int64_t>(rows.room_of.size()) - 1;
    int64_t joined = 0;
    rows.bag_offsets[0] = 0;
    for (int64_t b = 0; b < size && bags > 0; ++b) {
      const int64_t first = rows.room_of[b];
      int32_t* ends = rows.bag_offsets + b * bags + 1;
      const int64_t ids = ends[bags - 1] - first;
      std::copy_n(rows.bag_rows + first, ids, rows.bag_rows + joined);
      for (int64_t i = 0; i < bags; ++i) ends[i] -= row_number(first - joined);
      joined += ids;
    }
  }

  // Reads one request's features into its row; rows may be read at once. Throws the first Fault:
  // those of declared inputs come first, kind by kind.
  void read(const Spans& request, int64_t row, const Rows& rows,
            wire::UnknownNames& unknown) const {
    Given given = find(request);
    read_dense(given.dense, rows.dense + row * numbers_);
    read_categorical(given.categorical,
                     rows.categorical + row * static_cast<int64_t>(categorical_.size()));
    read_bags(given.bags, row, rows);
    int32_t* places = rows.events + row * layout_.places * layout_.ids;
    std::fill_n(places, layout_.places * layout_.ids, layout_.zeros);
    thread_local Events events;
    for (size_t i = 0; i < sequences_.size(); ++i) {
      read_events(sequences_[i], *given.sequences[i], request, events, unknown);
      check_events(sequences_[i], events);
      if (layout_.packed) {
        write_packed(sequences_[i], events, places);
      } else {
        write_events(sequences_[i], events, places);
      }
    }
    std::sort(given.others.begin(), given.others.end(), wire::comes_before);
    for (const Entry* other : given.others) {
      const auto declared = names_.find(other->name);
      if (declared != names_.end()) {
        const auto right = static_cast<int64_t>(declared->second.map);
        throw other->fault(Wrong::kOtherKind, other->map, right);
      }
      unknown.add(*other);
    }
  }

  Workers workers;  // the threads that read a batch

 private:
  // The entry of each declared input, or an empty one; and all entries of other names or kinds.
  struct Given {
    std::vector<const Entry*> dense, categorical, bags, sequences;
    std::vector<const Entry*> others;
  };

  // One sequence as sent, oldest first: `count` events.
  struct Events {
    const Entry* entry = nullptr;
    int64_t count = 0;
    std::vector<uint32_t> tokens;
    std::vector<int64_t> times;  // as many as events, or none, as the ids of each side
    std::vector<const Entry*> side_entries;
    std::vector<std::vector<int64_t>> side;
  };

  void declare(const std::string& name, Place place) {
    require(names_.emplace(name, place).second, "features: an input is declared twice");
  }

  void add_sequence(Sequence input) {
    const auto length = static_cast<int64_t>(layout_.vocab_sizes.size());
    const int64_t places = layout_.packed ? input.max_length * length +
                                                static_cast<int64_t>(layout_.prefix.size()) +
                                                static_cast<int64_t>(layout_.suffix.size())
                                          : input.max_length;
    require(input.first_place >= 0 && input.max_length > 0 &&
                input.first_place + places <= layout_.places &&
                input.token_rows.size() == layout_.vocab_sizes.size() &&
                layout_.ids >= (layout_.packed ? 1 : 2 + length),
            "features: a sequence is not within the layout");
    declare(input.name, {Field::kSequences, sequences_.size()});
    sequences_.push_back(std::move(input));
  }

  void add_side(const std::string& name, Side side) {
    require(!sequences_.empty(), "features: a side before its sequence");
    Sequence& sequence = sequences_.back();
    const auto filled = static_cast<int64_t>(2 + sequence.token_rows.size() + sequence.side.size());
    require(!layout_.packed && filled < layout_.ids &&
                sequence.side_names.emplace(name, sequence.side.size()).second,
            "features: a side is declared twice or not within the layout");
    sequence.side.push_back(side);
  }

  Given find(const Spans& request) const {
    Given given;
    const auto take = [&](Field map, size_t declared, std::vector<const Entry*>& entries) {
      entries.assign(declared, &wire::kNoEntry);
      for (const Entry& entry : request.entries(map)) {
        const auto found = names_.find(entry.name);
        if (found == names_.end() || found->second.map != map) {
          given.others.push_back(&entry);
        } else {
          entries[found->second.number] = &entry;
        }
      }
    };
    take(Field::kDense, dense_.size(), given.dense);
    take(Field::kCategorical, categorical_.size(), given.categorical);
    take(Field::kBags, bags_.size(), given.bags);
    take(Field::kSequences, sequences_.size(), given.sequences);
    return given;
  }

  void read_dense(const std::vector<const Entry*>& given, float* numbers) const {
    for (size_t i = 0; i < dense_.size(); ++i) {
      const std::vector<float>& defaults = dense_[i].defaults;
      const auto size = static_cast<int64_t>(defaults.size());
      const int64_t count = given[i]->number(Field::kDenseValues);
      const auto fault = [&](Wrong wrong, int64_t value) {
        return given[i]->fault(wrong, Field::kDenseValues, value, size);
      };
      if (given[i]->not_finite != 0) {
        throw fault(Wrong::kNotFinite, wire::code_of(given[i]->not_finite));
      }
      if (count != 0 && count != size) throw fault(Wrong::kDenseSize, count);
      if (count == 0) {
        numbers = std::copy(defaults.begin(), defaults.end(), numbers);
      } else {
        wire::each_float(*given[i], Field::kDenseValues, [&](float value) { *numbers++ = value; });
      }
    }
  }

  void read_categorical(const std::vector<const Entry*>& given, int32_t* ids) const {
    constexpr Field kField = Field::kCategoricalIds;
    for (size_t i = 0; i < categorical_.size(); ++i) {
      const Categorical& input = categorical_[i];
      const int64_t count = given[i]->number(kField);
      int64_t chosen = input.standard;
      if (count > 1) throw given[i]->fault(Wrong::kNotOneId, kField, count);
      wire::each_integer(*given[i], kField,
                         [&](uint64_t id) { chosen = static_cast<int64_t>(id); });
      if (!is_below(chosen, input.cardinality)) {
        throw given[i]->fault(Wrong::kIdRange, kField, chosen, input.cardinality - 1);
      }
      *ids++ = row_number(input.first_row + chosen);
    }
  }

  void read_bags(const std::vector<const Entry*>& given, int64_t row, const Rows& rows) const {
    const auto bags = static_cast<int64_t>(bags_.size());
    int64_t at = rows.room_of[row];
    for (int64_t i = 0; i < bags; ++i) {
      const Bag& bag = bags_[i];
      const int64_t count = given[i]->number(Field::kBagIds);
      const auto defaults = static_cast<int64_t>(bag.defaults.size());
      require(at + (count > 0 ? count : defaults) <= rows.room_of[row + 1],
              "features: no room for the bags");
      const auto take = [&](uint64_t id) {
        rows.bag_rows[at++] =
            row_number(bag.first_row + static_cast<int64_t>(mixed(id) % bag.hash_rows));
      };
      wire::each_integer(*given[i], Field::kBagIds, take);
      if (count == 0) std::for_each(bag.defaults.begin(), bag.defaults.end(), take);
      rows.bag_offsets[row * bags + i + 1] = row_number(at);
    }
  }

  void read_events(const Sequence& sequence, const Entry& entry, const Spans& request,
                   Events& events, wire::UnknownNames& unknown) const {
    events.entry = &entry;
    wire::copy_integers(entry, Field::kSids, events.tokens);
    wire::copy_integers(entry, Field::kTimestamps, events.times);
    events.count = static_cast<int64_t>(events.tokens.size() / layout_.vocab_sizes.size());
    events.side_entries.assign(sequence.side.size(), &wire::kNoEntry);
    if (events.side.size() < sequence.side.size()) events.side.resize(sequence.side.size());
    for (const Entry& side : request.entries(Field::kSides)) {
      if (entry.place == 0 || side.parent != entry.place) continue;
      const auto found = sequence.side_names.find(side.name);
      if (found == sequence.side_names.end()) {
        unknown.add(side);
      } else {
        events.side_entries[found->second] = &side;
      }
    }
    for (size_t i = 0; i < sequence.side.size(); ++i) {
      wire::copy_integers(*events.side_entries[i], Field::kSideIds, events.side[i]);
    }
  }

  void check_events(const Sequence& sequence, const Events& events) const {
    const auto length = static_cast<int64_t>(layout_.vocab_sizes.size());
    const auto count = static_cast<int64_t>(events.tokens.size());
    if (count % length != 0) {
      throw events.entry->fault(Wrong::kCutEvent, Field::kSids, count, length);
    }
    for (int64_t t = 0; t < length; ++t) {
      const int64_t size = layout_.vocab_sizes[t];
      for (int64_t i = t; i < count; i += length) {
        const int64_t token = events.tokens[i];
        if (is_below(token, size)) continue;
        const Wrong wrong = length > 1 ? Wrong::kTokenRange : Wrong::kIdRange;
        wire::Fault fault = events.entry->fault(wrong, Field::kSids, token, size - 1);
        fault.place = t;
        throw fault;
      }
    }
    const auto one_each = [&](size_t given, Field field, const Entry& entry) {
      const auto values = static_cast<int64_t>(given);
      if (values == 0 || values == events.count) return;
      throw entry.fault(Wrong::kNotPerEvent, field, values, events.count);
    };
    one_each(events.times.size(), Field::kTimestamps, *events.entry);
    const auto first = std::min_element(events.times.begin(), events.times.end());
    if (first != events.times.end() && *first < 0) {
      throw events.entry->fault(Wrong::kNegativeTime, Field::kTimestamps, *first);
    }
    for (size_t i = 0; i < sequence.side.size(); ++i) {
      const Entry& side = *events.side_entries[i];
      one_each(events.side[i].size(), Field::kSideIds, side);
      const int64_t size = sequence.side[i].cardinality;
      for (const int64_t id : events.side[i]) {
        if (!is_below(id, size)) throw side.fault(Wrong::kIdRange, Field::kSideIds, id, size - 1);
      }
    }
  }

  // In the order in which model.features adds them: age, position, tokens, side.
  void write_events(const Sequence& sequence, const Events& events, int32_t* places) const {
    const int64_t kept = std::min(events.count, sequence.max_length);
    const int64_t skipped = events.count - kept;
    const size_t length = layout_.vocab_sizes.size();
    const bool timed = !events.times.empty();
    const int64_t newest =
        timed ? *std::max_element(events.times.begin() + skipped, events.times.end()) : 0;
    int32_t* place = places + sequence.first_place * layout_.ids;
    for (int64_t i = 0; i < kept; ++i, place += layout_.ids) {
      const auto event = static_cast<size_t>(skipped + i);
      int32_t* id = place;
      *id++ = row_number(sequence.age_row + (timed ? age_bucket(newest - events.times[event]) : 0));
      *id++ = row_number(sequence.position_row + kept - 1 - i);
      for (size_t t = 0; t < length; ++t) {
        *id++ = row_number(sequence.token_rows[t] + events.tokens[event * length + t]);
      }
      for (size_t s = 0; s < sequence.side.size(); ++s) {
        const std::vector<int64_t>& ids = events.side[s];
        const int64_t side = ids.empty() ? sequence.side[s].cardinality : ids[event];
        *id++ = row_number(sequence.side[s].first_row + side);
      }
    }
  }

  void write_packed(const Sequence& sequence, const Events& events, int32_t* places) const {
    const size_t length = layout_.vocab_sizes.size();
    const int64_t skipped = events.count - std::min(events.count, sequence.max_length);
    int32_t* place = std::copy(layout_.prefix.begin(), layout_.prefix.end(), places);
    for (size_t i = static_cast<size_t>(skipped) * length; i < events.tokens.size(); ++i) {
      *place++ = row_number(sequence.token_rows[i % length] + events.tokens[i]);
    }
    std::copy(layout_.suffix.begin(), layout_.suffix.end(), place);
  }

  EventLayout layout_;
  std::map<std::string, Place, std::less<>> names_;
  std::vector<Dense> dense_;
  int64_t numbers_ = 0;
  std::vector<Categorical> categorical_;
  std::vector<Bag> bags_;
  int64_t default_ids_ = 0;  // of all bags together
  std::vector<Sequence> sequences_;
};

Inputs& inputs_of(uint64_t handle) { return *reinterpret_cast<Inputs*>(handle); }

template <typename T>
std::vector<T> copied(const T* values, int64_t count) {
  return std::vector<T>(values, values + count);
}

}  // namespace

// The arguments are an EventLayout, and the threads that read a batch, the caller's among them. Add
// the inputs of each map in declared order.
GRACE_API int32_t grace_features_open(int64_t sid_length, const int64_t* vocab_sizes,
                                      int64_t places, int64_t ids, int32_t zeros, int32_t packed,
                                      int64_t prefixes, const int32_t* prefix, int64_t suffixes,
                                      const int32_t* suffix, int32_t threads, uint64_t* handle) {
  return grace::guarded([&] {
    require(sid_length > 0 && places >= 0 && ids > 0, "features_open: no such layout");
    auto inputs = std::make_unique<Inputs>(
        EventLayout{copied(vocab_sizes, sid_length), places, ids, zeros, packed != 0,
                    copied(prefix, prefixes), copied(suffix, suffixes)},
        threads);
    *handle = reinterpret_cast<uint64_t>(inputs.release());
  });
}

// Adds an input to those of `map`, a row of wire_fields.h.
//   numbers  int64 [count], by map:
//              dense        none: `defaults` float32 [size] has one for each number of the input
//              categorical  cardinality, default id, first row
//              bags         rows, first row, default ids
//              sequences    most events, first place, first row of ages, first row of positions,
//                           first row of the tokens at each position of a SID
//              side         cardinality, first row; it belongs to the sequence added last
GRACE_API int32_t grace_features_add(uint64_t handle, int64_t map, const char* name, int64_t count,
                                     const int64_t* numbers, int64_t size, const float* defaults) {
  return grace::guarded([&] {
    inputs_of(handle).add(static_cast<Field>(map), name, copied(numbers, count),
                          copied(defaults, size));
  });
}

GRACE_API int32_t grace_features_close(uint64_t handle) {
  return grace::guarded([&] { delete &inputs_of(handle); });
}

// Each message is a grace.v1.RetrieveRequest. wire::Batch describes the arrays of faults and
// unknown names. The others are those of FeatureLookups, with `size` rows; numbers are as sent.
GRACE_API int32_t grace_features_read(uint64_t handle, int64_t requests, int64_t size,
                                      const char* const* messages, const int64_t* sizes,
                                      float* dense, int32_t* categorical, int32_t* bag_offsets,
                                      int64_t bag_room, int32_t* bag_rows, int32_t* events,
                                      int64_t* faults, int64_t unknown_room, int64_t* unknown,
                                      int64_t* unknown_ends) {
  return grace::guarded([&] {
    require(bag_room <= std::numeric_limits<int32_t>::max(),
            "features_read: more ids in bags than int32 offsets can number");
    Inputs& inputs = inputs_of(handle);
    const Rows rows{
        dense, categorical, bag_offsets, bag_rows, inputs.bag_rooms(size, requests, sizes), events};
    require(rows.room_of.back() <= bag_room, "features_read: no room for the bags");
    wire::read_batch({requests, size, messages, sizes, faults, unknown_room, unknown, unknown_ends},
                     Field::kFeatures, inputs.workers,
                     [&](const Spans& request, int64_t row, wire::UnknownNames& names) {
                       inputs.read(request, row, rows, names);
                     });
    inputs.join_bags(rows);
  });
}
