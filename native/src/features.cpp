#include "grace/features.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string_view>

#include "grace/abi.h"

namespace grace::features {

using wire::kBytes;
using wire::map_entry;
using wire::Reader;
using wire::require_plain;
using wire::tag_of;

namespace {

constexpr int64_t kAgeBuckets = 44;  // model.inputs.AGE_BUCKETS
constexpr std::string_view kKindNames[] = {"dense", "categorical", "bags", "sequences"};

int32_t row_number(int64_t row) { return static_cast<int32_t>(row); }

// SplitMix64's finaliser, as in model/definition/input_encoding.py.
uint64_t mixed(uint64_t id) {
  id += 0x9E3779B97F4A7C15u;
  id = (id ^ (id >> 30)) * 0xBF58476D1CE4E5B9u;
  id = (id ^ (id >> 27)) * 0x94D049BB133111EBu;
  return id ^ (id >> 31);
}

// 1 + floor(log2(1 + age)), which is how many bits 1 + age has.
int64_t age_bucket(uint64_t age) {
  return std::min<int64_t>(64 - __builtin_clzll(age + 1), kAgeBuckets - 1);
}

}  // namespace

// The message of each declared input; a null one where there is none.
struct Inputs::Given {
  std::vector<Reader> dense, categorical, bags, sequences;

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

// One sequence as sent, oldest first: `count` events, each of the other lists as long or empty.
struct Inputs::Events {
  int64_t count = 0;
  std::vector<int64_t> tokens;
  std::vector<uint64_t> times;
  std::vector<std::vector<int64_t>> side;

  void clear(size_t sides) {
    tokens.clear();
    times.clear();
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

void Inputs::read(Reader features, int64_t row, const Rows& rows, std::string& unknown) const {
  const Given given = find(features, unknown);
  read_dense(given, rows.dense + row * numbers_);
  read_categorical(given, rows.categorical + row * static_cast<int64_t>(categorical_.size()));
  read_bags(given, row, rows);
  int32_t* places = rows.events + row * layout_.places * layout_.ids;
  std::fill_n(places, layout_.places * layout_.ids, layout_.zeros);
  thread_local Events events;
  for (size_t i = 0; i < sequences_.size(); ++i) {
    read_events(sequences_[i], given.sequences[i], events, unknown);
    if (layout_.packed) {
      write_packed(sequences_[i], events, places);
    } else {
      write_events(sequences_[i], events, places);
    }
  }
}

Inputs::Given Inputs::find(Reader features, std::string& unknown) const {
  Given given{std::vector<Reader>(dense_.size()), std::vector<Reader>(categorical_.size()),
              std::vector<Reader>(bags_.size()), std::vector<Reader>(sequences_.size())};
  while (!features.done()) {
    const uint8_t tag = features.tag();
    const int field = tag >> 3;
    require_plain((tag & 7) == kBytes && field <= 4);
    const wire::MapEntry entry = map_entry(features.bytes());
    const auto found = names_.find(entry.name);
    if (found == names_.end()) {
      unknown.append(kKindNames[field - 1]).append(".").append(entry.name).push_back('\0');
      wire::require_listable(entry.name);
      continue;
    }
    require_plain(static_cast<int>(found->second.kind) == field - 1);
    Reader& message = given.of(found->second);
    require_plain(message.at() == nullptr);
    // A message without bytes is one, too: the second of that name is still the second.
    message = entry.value.at() == nullptr ? Reader(features.at(), 0) : entry.value;
  }
  return given;
}

void Inputs::read_dense(const Given& given, float* numbers) const {
  for (size_t i = 0; i < dense_.size(); ++i) {
    const std::vector<float>& defaults = dense_[i].defaults;
    const auto size = static_cast<int64_t>(defaults.size());
    int64_t count = 0;
    Reader message = given.dense[i];
    while (!message.done()) {
      const auto take = [&](float number) {
        require_plain(count < size && std::isfinite(number));
        numbers[count++] = number;
      };
      require_plain(wire::take_floats(message, message.tag(), 1, take));
    }
    require_plain(count == 0 || count == size);
    if (count == 0) std::copy(defaults.begin(), defaults.end(), numbers);
    numbers += size;
  }
}

void Inputs::read_categorical(const Given& given, int32_t* ids) const {
  for (size_t i = 0; i < categorical_.size(); ++i) {
    const Categorical& input = categorical_[i];
    int64_t count = 0;
    uint64_t chosen = static_cast<uint64_t>(input.standard);
    Reader message = given.categorical[i];
    while (!message.done()) {
      const auto take = [&](uint64_t id) {
        require_plain(count++ == 0 && id < static_cast<uint64_t>(input.cardinality));
        chosen = id;
      };
      require_plain(wire::take_integers(message, message.tag(), 1, take));
    }
    *ids++ = row_number(input.first_row + static_cast<int64_t>(chosen));
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
    Reader message = given.bags[static_cast<size_t>(i)];
    while (!message.done()) require_plain(wire::take_integers(message, message.tag(), 1, take));
    if (at == begin) {
      for (const int64_t id : bag.defaults) take(static_cast<uint64_t>(id));
    }
    rows.bag_offsets[row * bags + i + 1] = row_number(at);
  }
}

void Inputs::read_events(const Sequence& sequence, Reader message, Events& events,
                         std::string& unknown) const {
  const size_t length = layout_.vocab_sizes.size();
  events.clear(sequence.side.size());
  std::vector<bool> given(sequence.side.size());
  size_t position = 0;
  const auto take_token = [&](uint64_t token) {
    require_plain(token < static_cast<uint64_t>(layout_.vocab_sizes[position]));
    position = position + 1 == length ? 0 : position + 1;
    events.tokens.push_back(static_cast<int64_t>(token));
  };
  const auto take_time = [&](uint64_t time) {
    require_plain(time <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max()));
    events.times.push_back(time);
  };
  while (!message.done()) {
    const uint8_t tag = message.tag();
    if (wire::take_integers(message, tag, 1, take_token)) continue;
    if (wire::take_integers(message, tag, 2, take_time)) continue;
    require_plain(tag == tag_of(3, kBytes));
    wire::MapEntry entry = map_entry(message.bytes());
    const auto found = sequence.side_names.find(entry.name);
    if (found == sequence.side_names.end()) {
      wire::require_listable(entry.name);
      unknown.append("sequences.").append(sequence.name).append(".side.").append(entry.name);
      unknown.push_back('\0');
      continue;
    }
    const size_t number = found->second;
    require_plain(!given[number]);
    given[number] = true;
    const auto take_id = [&](uint64_t id) {
      require_plain(id < static_cast<uint64_t>(sequence.side[number].cardinality));
      events.side[number].push_back(static_cast<int64_t>(id));
    };
    while (!entry.value.done()) {
      require_plain(wire::take_integers(entry.value, entry.value.tag(), 1, take_id));
    }
  }
  require_plain(position == 0);
  events.count = static_cast<int64_t>(events.tokens.size() / length);
  const auto one_each = [&](size_t count) {
    require_plain(count == 0 || count == static_cast<size_t>(events.count));
  };
  one_each(events.times.size());
  for (size_t i = 0; i < sequence.side.size(); ++i) one_each(events.side[i].size());
}

// In the order in which model.feature_tables adds them: age, position, tokens, side.
void Inputs::write_events(const Sequence& sequence, const Events& events, int32_t* places) const {
  const int64_t kept = std::min(events.count, sequence.max_length);
  const int64_t skipped = events.count - kept;
  const size_t length = layout_.vocab_sizes.size();
  const bool timed = !events.times.empty();
  const uint64_t newest =
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
