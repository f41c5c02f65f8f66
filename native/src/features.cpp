#include "grace/features.h"

#include <algorithm>
#include <cmath>
#include <string_view>

#include "grace/abi.h"
#include "grace/wire_request.h"

namespace grace::features {

using wire::Fault;
using wire::Field;
using wire::kBytes;
using wire::Reader;
using wire::tag_of;
using wire::Wrong;

namespace {

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

// Calls take(part, tag) for each field in all parts of an entry's message.
template <typename Take>
void each_value_field(Reader entry, Take&& take) {
  std::string_view name;
  wire::read_entry(entry, name, [&](Reader part) { wire::each_field(part, take); });
}

template <typename Take>
void each_id(Reader entry, Take&& take) {
  each_value_field(
      entry, [&](Reader& ids, uint32_t tag) { return wire::take_integers(ids, tag, 1, take); });
}

bool is_below(int64_t value, int64_t bound) {
  return static_cast<uint64_t>(value) < static_cast<uint64_t>(bound);
}

}  // namespace

// The entry that counts of each declared input, a null reader where there is none, and all entries
// of other names or kinds.
struct Inputs::Given {
  struct Other {
    std::string_view name;
    size_t parent;  // its kind
  };
  std::vector<Reader> dense, categorical, bags, sequences;
  wire::LastOfEachName<Other> others;

  Reader& of(Place place) {
    switch (place.kind) {
      case Kind::kDense:
        return dense[place.number];
      case Kind::kCategorical:
        return categorical[place.number];
      case Kind::kBag:
        return bags[place.number];
      default:
        return sequences[place.number];
    }
  }
};

// One sequence as sent, oldest first: `count` events.
struct Inputs::Events {
  std::string_view name;
  int64_t count = 0;
  std::vector<uint32_t> tokens;
  std::vector<int64_t> times;                 // as many as events, or none, as the ids of each side
  wire::LastOfEachName<Given::Other> others;  // sides that the model does not have
  std::vector<std::string_view> side_names;
  std::vector<std::vector<int64_t>> side;

  void clear(size_t sides) {
    tokens.clear();
    times.clear();
    others.clear();
    side_names.assign(sides, {});
    if (side.size() < sides) side.resize(sides);
    for (auto& ids : side) ids.clear();
  }
};

void Inputs::declare(const std::string& name, Place place) {
  require(names_.emplace(name, place).second, "features: an input is declared twice");
}

void Inputs::add(const std::string& name, Dense input) {
  declare(name, {Kind::kDense, dense_.size()});
  numbers_ += static_cast<int64_t>(input.defaults.size());
  dense_.push_back(std::move(input));
}

void Inputs::add(const std::string& name, Categorical input) {
  declare(name, {Kind::kCategorical, categorical_.size()});
  categorical_.push_back(input);
}

void Inputs::add(const std::string& name, Bag input) {
  require(input.hash_rows > 0, "features: a bag without rows");
  declare(name, {Kind::kBag, bags_.size()});
  bags_.push_back(std::move(input));
}

void Inputs::add(Sequence input) {
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
  declare(input.name, {Kind::kSequence, sequences_.size()});
  sequences_.push_back(std::move(input));
}

void Inputs::add_side(const std::string& name, Side side) {
  require(!sequences_.empty(), "features: a side before its sequence");
  Sequence& sequence = sequences_.back();
  const auto filled = static_cast<int64_t>(2 + sequence.token_rows.size() + sequence.side.size());
  require(!layout_.packed && filled < layout_.ids &&
              sequence.side_names.emplace(name, sequence.side.size()).second,
          "features: a side is declared twice or not within the layout");
  sequence.side.push_back(side);
}

void Inputs::read(Reader request, int64_t row, const Rows& rows,
                  wire::UnknownNames& unknown) const {
  Given given = find(request);
  read_dense(given, rows.dense + row * numbers_);
  read_categorical(given, rows.categorical + row * static_cast<int64_t>(categorical_.size()));
  read_bags(given, row, rows);
  int32_t* places = rows.events + row * layout_.places * layout_.ids;
  std::fill_n(places, layout_.places * layout_.ids, layout_.zeros);
  thread_local Events events;
  for (size_t i = 0; i < sequences_.size(); ++i) {
    read_events(sequences_[i], given.sequences[i], events);
    check_events(sequences_[i], events);
    for (const Given::Other& side : events.others.entries()) {
      unknown.add(Field::kOneSide, events.name, side.name);
    }
    if (layout_.packed) {
      write_packed(sequences_[i], events, places);
    } else {
      write_events(sequences_[i], events, places);
    }
  }
  report_others(given, unknown);
}

Inputs::Given Inputs::find(Reader request) const {
  Given given{std::vector<Reader>(dense_.size()),
              std::vector<Reader>(categorical_.size()),
              std::vector<Reader>(bags_.size()),
              std::vector<Reader>(sequences_.size()),
              {}};
  const auto take_entry = [&](Reader& features, uint32_t tag) {
    const auto kind = static_cast<size_t>((tag >> 3) - 1);
    if ((tag & 7) != kBytes || kind > 3) return false;
    const Reader entry = features.bytes();
    std::string_view name;
    if (!wire::read_entry(entry, name, [](Reader) {})) return true;
    const auto found = names_.find(name);
    if (found == names_.end() || static_cast<size_t>(found->second.kind) != kind) {
      given.others.put({name, kind});
    } else {
      given.of(found->second) = entry;
    }
    return true;
  };
  wire::each_field(request, [&](Reader& fields, uint32_t tag) {
    if (tag != tag_of(wire::kFeaturesMessage, kBytes)) return false;
    wire::each_field(fields.bytes(), take_entry);
    return true;
  });
  return given;
}

void Inputs::report_others(Given& given, wire::UnknownNames& unknown) const {
  for (const Given::Other& other : given.others.sorted()) {
    const Field field = shifted(Field::kOneDense, static_cast<int64_t>(other.parent));
    const auto declared = names_.find(other.name);
    if (declared != names_.end()) {
      const auto right = static_cast<int64_t>(declared->second.kind);
      throw Fault{Wrong::kOtherKind, field, right, 0, other.name};
    }
    unknown.add(field, other.name);
  }
}

void Inputs::read_dense(const Given& given, float* numbers) const {
  for (size_t i = 0; i < dense_.size(); ++i) {
    const std::vector<float>& defaults = dense_[i].defaults;
    const auto size = static_cast<int64_t>(defaults.size());
    const auto fault = [&](Wrong wrong, int64_t value) {
      return Fault{wrong, Field::kDenseValues, value, size, wire::name_of(given.dense[i])};
    };
    int64_t count = 0;
    const auto take = [&](float number) {
      if (!std::isfinite(number)) throw fault(Wrong::kNotFinite, wire::code_of(number));
      if (count < size) numbers[count] = number;
      ++count;
    };
    each_value_field(given.dense[i], [&](Reader& message, uint32_t tag) {
      return wire::take_floats(message, tag, 1, take);
    });
    if (count != 0 && count != size) throw fault(Wrong::kDenseSize, count);
    if (count == 0) std::copy(defaults.begin(), defaults.end(), numbers);
    numbers += size;
  }
}

void Inputs::read_categorical(const Given& given, int32_t* ids) const {
  for (size_t i = 0; i < categorical_.size(); ++i) {
    const Categorical& input = categorical_[i];
    const auto fault = [&](Wrong wrong, int64_t value, int64_t limit) {
      return Fault{wrong, Field::kCategoricalIds, value, limit,
                   wire::name_of(given.categorical[i])};
    };
    int64_t count = 0;
    int64_t chosen = input.standard;
    each_id(given.categorical[i], [&](uint64_t id) {
      chosen = static_cast<int64_t>(id);
      ++count;
    });
    if (count > 1) throw fault(Wrong::kNotOneId, count, 1);
    if (!is_below(chosen, input.cardinality)) {
      throw fault(Wrong::kIdRange, chosen, input.cardinality - 1);
    }
    *ids++ = row_number(input.first_row + chosen);
  }
}

void Inputs::read_bags(const Given& given, int64_t row, const Rows& rows) const {
  const auto bags = static_cast<int64_t>(bags_.size());
  int64_t at = rows.bag_offsets[row * bags];
  for (int64_t i = 0; i < bags; ++i) {
    const Bag& bag = bags_[static_cast<size_t>(i)];
    const int64_t begin = at;
    const auto take = [&](uint64_t id) {
      require(at < rows.bag_room, "features: no room for the bags");
      rows.bag_rows[at++] =
          row_number(bag.first_row + static_cast<int64_t>(mixed(id) % bag.hash_rows));
    };
    each_id(given.bags[static_cast<size_t>(i)], take);
    if (at == begin) {
      for (const int64_t id : bag.defaults) take(static_cast<uint64_t>(id));
    }
    rows.bag_offsets[row * bags + i + 1] = row_number(at);
  }
}

void Inputs::read_events(const Sequence& sequence, Reader entry, Events& events) const {
  events.clear(sequence.side.size());
  events.name = wire::name_of(entry);
  std::vector<Reader> sides(sequence.side.size());
  each_value_field(entry, [&](Reader& message, uint32_t tag) {
    const auto take_token = [&](uint64_t token) {
      events.tokens.push_back(static_cast<uint32_t>(token));
    };
    const auto take_time = [&](uint64_t time) {
      events.times.push_back(static_cast<int64_t>(time));
    };
    if (wire::take_integers(message, tag, 1, take_token)) return true;
    if (wire::take_integers(message, tag, 2, take_time)) return true;
    if (tag != tag_of(3, kBytes)) return false;
    const Reader side = message.bytes();
    std::string_view name;
    if (!wire::read_entry(side, name, [](Reader) {})) return true;
    const auto found = sequence.side_names.find(name);
    if (found == sequence.side_names.end()) {
      events.others.put({name, 0});
    } else {
      sides[found->second] = side;
    }
    return true;
  });
  events.count = static_cast<int64_t>(events.tokens.size() / layout_.vocab_sizes.size());
  for (size_t i = 0; i < sides.size(); ++i) {
    events.side_names[i] = wire::name_of(sides[i]);
    each_id(sides[i], [&](uint64_t id) { events.side[i].push_back(static_cast<int64_t>(id)); });
  }
}

void Inputs::check_events(const Sequence& sequence, const Events& events) const {
  const auto length = static_cast<int64_t>(layout_.vocab_sizes.size());
  const auto count = static_cast<int64_t>(events.tokens.size());
  if (count % length != 0) {
    throw Fault{Wrong::kCutEvent, Field::kSids, count, length, events.name};
  }
  for (int64_t t = 0; t < length; ++t) {
    const int64_t size = layout_.vocab_sizes[static_cast<size_t>(t)];
    for (int64_t i = t; i < count; i += length) {
      const int64_t token = events.tokens[static_cast<size_t>(i)];
      if (is_below(token, size)) continue;
      const Wrong wrong = length > 1 ? Wrong::kTokenRange : Wrong::kIdRange;
      throw Fault{wrong, Field::kSids, token, size - 1, events.name, {}, t};
    }
  }
  const auto one_each = [&](size_t given, Field field, std::string_view side) {
    const auto values = static_cast<int64_t>(given);
    if (values == 0 || values == events.count) return;
    throw Fault{Wrong::kNotPerEvent, field, values, events.count, events.name, side};
  };
  one_each(events.times.size(), Field::kTimestamps, {});
  const auto first = std::min_element(events.times.begin(), events.times.end());
  if (first != events.times.end() && *first < 0) {
    throw Fault{Wrong::kNegativeTime, Field::kTimestamps, *first, 0, events.name};
  }
  for (size_t i = 0; i < sequence.side.size(); ++i) {
    const std::string_view name = events.side_names[i];
    one_each(events.side[i].size(), Field::kSideIds, name);
    const int64_t size = sequence.side[i].cardinality;
    for (const int64_t id : events.side[i]) {
      if (is_below(id, size)) continue;
      throw Fault{Wrong::kIdRange, Field::kSideIds, id, size - 1, events.name, name};
    }
  }
}

// In the order in which model.feature_tables adds them: age, position, tokens, side.
void Inputs::write_events(const Sequence& sequence, const Events& events, int32_t* places) const {
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

void Inputs::write_packed(const Sequence& sequence, const Events& events, int32_t* places) const {
  const size_t length = layout_.vocab_sizes.size();
  const int64_t skipped = events.count - std::min(events.count, sequence.max_length);
  int32_t* place = std::copy(layout_.prefix.begin(), layout_.prefix.end(), places);
  for (size_t i = static_cast<size_t>(skipped) * length; i < events.tokens.size(); ++i) {
    *place++ = row_number(sequence.token_rows[i % length] + events.tokens[i]);
  }
  std::copy(layout_.suffix.begin(), layout_.suffix.end(), place);
}

}  // namespace grace::features
