// Reads requests' features, grace.v1.Features, from the bytes into the row numbers that
// model/engine/feature_reader.py describes. A handle holds a model's inputs; a call reads a batch.
#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

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

// An input has the number of its name.
struct Dense {
  size_t name;
  std::vector<float> defaults;  // one for each number of the input
};

struct Categorical {
  size_t name;
  int64_t cardinality;
  int64_t standard;
  int64_t first_row;
};

struct Bag {
  size_t name;
  uint64_t hash_rows;
  int64_t first_row;
  std::vector<int64_t> defaults;
};

struct Side {
  int64_t cardinality;
  int64_t first_row;
};

struct Sequence {
  size_t name;
  int64_t max_length;
  int64_t first_place;
  int64_t age_row;
  int64_t position_row;
  std::vector<int64_t> token_rows;  // the first row of each SID position; none if packed
  std::map<std::string, size_t, std::less<>> side_names;
  std::vector<Side> side;
};

// A prompt, which a request sends as tokens. Without one, its history is packed into a prompt.
struct Prompt {
  size_t name;
  int64_t num_tokens;
  int64_t max_tokens;
};

// Where a row's events are. A packed sequence has neither ages nor positions: its tokens follow
// each other, those of each event between `before` and `after`, and all events between prefix and
// suffix.
struct EventLayout {
  std::vector<int64_t> vocab_sizes;
  int64_t places;
  int64_t ids;    // in each place
  int32_t zeros;  // the row that absent ids read
  std::vector<int32_t> prefix;
  std::vector<int32_t> before;
  std::vector<int32_t> after;
  std::vector<int32_t> suffix;
  std::vector<int32_t> codes;  // if packed, the token of each code, position by position

  bool packed() const { return !codes.empty(); }
};

// A batch's arrays, as in FeatureLookups; its numbers are as sent, not squashed. Until all rows are
// read, `bags` has the ids of each row's bags, and offsets count from the row's first one. A prompt
// is a bag.
struct Rows {
  float* dense;
  int32_t* categorical;
  int32_t* bag_offsets;
  int64_t bag_room;
  int32_t* bag_rows;
  int32_t* events;
  std::vector<std::vector<int32_t>> bags;
};

class Inputs {
 public:
  Inputs(EventLayout layout, int32_t threads)
      : workers(threads, "grace-read"), layout_(std::move(layout)) {
    const std::vector<int64_t>& sizes = layout_.vocab_sizes;
    const auto codes = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
    require(!layout_.packed() || static_cast<int64_t>(layout_.codes.size()) == codes,
            "features: the layout does not have one token for each code");
  }

  // Adds an input to those of one map of features, as grace_features_add describes it.
  void add(Field map, const std::string& name, const std::vector<int64_t>& numbers,
           std::vector<float> defaults) {
    const auto rest = [&](size_t first) {
      require(first <= numbers.size(), "features: an input lacks numbers");
      return std::vector<int64_t>(numbers.begin() + static_cast<int64_t>(first), numbers.end());
    };
    if (map == Field::kSides) return add_side(name, {numbers.at(0), numbers.at(1)});
    const size_t own = names_.add(map, name);
    switch (map) {
      case Field::kDense:
        numbers_ += static_cast<int64_t>(defaults.size());
        return dense_.push_back({own, std::move(defaults)});
      case Field::kCategorical:
        return categorical_.push_back({own, numbers.at(0), numbers.at(1), numbers.at(2)});
      case Field::kBags:
        require(numbers.at(0) > 0, "features: a bag without rows");
        return bags_.push_back({own, static_cast<uint64_t>(numbers[0]), numbers.at(1), rest(2)});
      case Field::kTokens:
        require(bags_.empty(), "features: a prompt is the only bag");
        prompt_ = {own, numbers.at(0), numbers.at(1)};
        return;
      case Field::kSequences:
        return add_sequence(
            {own, numbers.at(0), numbers.at(1), numbers.at(2), numbers.at(3), rest(4), {}, {}});
      default:
        require(false, "features: no input is in this map");
    }
  }

  // Moves the ids of all rows' bags together. Call it after all rows have been read.
  void join_bags(const Rows& rows) const {
    int64_t joined = 0;
    int32_t* end = rows.bag_offsets;
    *end++ = 0;
    for (const std::vector<int32_t>& ids : rows.bags) {
      const auto count = static_cast<int64_t>(ids.size());
      require(joined + count <= rows.bag_room, "features_read: no room for the bags");
      std::copy(ids.begin(), ids.end(), rows.bag_rows + joined);
      for (size_t i = 0; i < bags(); ++i) *end++ += row_number(joined);
      joined += count;
    }
  }

  // Reads one request's features into its row; rows may be read at once. Throws the first Fault:
  // those of declared inputs come first, kind by kind.
  void read(const Spans& request, int64_t row, Rows& rows, wire::UnknownNames& unknown) const {
    Given others;
    const Given given = names_.find(
        request,
        {Field::kDense, Field::kCategorical, Field::kBags, Field::kSequences, Field::kTokens},
        others);
    read_dense(given, rows.dense + row * numbers_);
    read_categorical(given, rows.categorical + row * static_cast<int64_t>(categorical_.size()));
    int32_t* ends = rows.bag_offsets + row * static_cast<int64_t>(bags()) + 1;
    std::vector<int32_t>& ids = rows.bags[row];
    read_bags(given, ends, ids);
    int32_t* places = rows.events + row * layout_.places * layout_.ids;
    std::fill_n(places, layout_.places * layout_.ids, layout_.zeros);
    thread_local Events events;
    events.count = events.skipped = 0;  // if there is no sequence
    for (const Sequence& sequence : sequences_) {
      read_events(sequence, *given[sequence.name], request, events, unknown);
      check_events(sequence, events);
      if (!layout_.packed()) write_events(sequence, events, places);
    }
    if (prompt_) {
      read_prompt(*given[prompt_->name], events, ids);
      *ends = static_cast<int32_t>(ids.size());
    } else if (layout_.packed()) {
      thread_local std::vector<int32_t> tokens;
      pack(events, tokens);
      std::copy(tokens.begin(), tokens.end(), places);
    }
    for (const Entry* other : others) {
      const Field right = names_.map_of(other->name);
      if (right != Field::kNone) {
        throw other->fault(Wrong::kOtherKind, other->map, static_cast<int64_t>(right));
      }
      unknown.add(*other);
    }
  }

  Workers workers;  // the threads that read a batch

 private:
  using Given = std::vector<const Entry*>;  // the entry of each declared input, or an empty one

  // One sequence as sent, oldest first: `count` events. The model skips the first `skipped`.
  struct Events {
    const Entry* entry = nullptr;
    int64_t count = 0;
    int64_t skipped = 0;
    std::vector<uint32_t> tokens;
    std::vector<int64_t> times;  // as many as events, or none, as the ids of each side
    std::vector<const Entry*> side_entries;
    std::vector<std::vector<int64_t>> side;
  };

  size_t bags() const { return bags_.size() + (prompt_ ? 1 : 0); }

  void add_sequence(Sequence input) {
    const size_t length = layout_.vocab_sizes.size();
    int64_t places = input.max_length;
    if (layout_.packed()) {
      places *= static_cast<int64_t>(layout_.before.size() + length + layout_.after.size());
      places += static_cast<int64_t>(layout_.prefix.size() + layout_.suffix.size());
    }
    require(input.first_place >= 0 && input.max_length > 0 &&
                input.first_place + places <= (prompt_ ? prompt_->max_tokens : layout_.places) &&
                input.token_rows.size() == (layout_.packed() ? 0 : length) &&
                layout_.ids >= (layout_.packed() ? 1 : 2 + static_cast<int64_t>(length)),
            "features: a sequence is not within the layout");
    sequences_.push_back(std::move(input));
  }

  void add_side(const std::string& name, Side side) {
    require(!sequences_.empty(), "features: a side before its sequence");
    Sequence& sequence = sequences_.back();
    const auto filled = static_cast<int64_t>(2 + sequence.token_rows.size() + sequence.side.size());
    require(!layout_.packed() && filled < layout_.ids &&
                sequence.side_names.emplace(name, sequence.side.size()).second,
            "features: a side is declared twice or not within the layout");
    sequence.side.push_back(side);
  }

  void read_dense(const Given& given, float* numbers) const {
    for (const Dense& input : dense_) {
      const Entry& entry = *given[input.name];
      const auto size = static_cast<int64_t>(input.defaults.size());
      const int64_t count = entry.number(Field::kDenseValues);
      const auto fault = [&](Wrong wrong, int64_t value) {
        return entry.fault(wrong, Field::kDenseValues, value, size);
      };
      if (entry.not_finite != 0) throw fault(Wrong::kNotFinite, wire::code_of(entry.not_finite));
      if (count != 0 && count != size) throw fault(Wrong::kDenseSize, count);
      if (count == 0) {
        numbers = std::copy(input.defaults.begin(), input.defaults.end(), numbers);
      } else {
        wire::each_number<wire::kFixed32>(entry, Field::kDenseValues,
                                          [&](float value) { *numbers++ = value; });
      }
    }
  }

  void read_categorical(const Given& given, int32_t* ids) const {
    constexpr Field kField = Field::kCategoricalIds;
    for (const Categorical& input : categorical_) {
      const Entry& entry = *given[input.name];
      const int64_t count = entry.number(kField);
      int64_t chosen = input.standard;
      if (count > 1) throw entry.fault(Wrong::kNotOneId, kField, count);
      wire::each_number<wire::kVarint>(entry, kField,
                                       [&](uint64_t id) { chosen = static_cast<int64_t>(id); });
      if (!is_below(chosen, input.cardinality)) {
        throw entry.fault(Wrong::kIdRange, kField, chosen, input.cardinality - 1);
      }
      *ids++ = row_number(input.first_row + chosen);
    }
  }

  void read_bags(const Given& given, int32_t* ends, std::vector<int32_t>& ids) const {
    thread_local std::vector<int32_t> own;
    own.clear();
    for (const Bag& bag : bags_) {
      const Entry& entry = *given[bag.name];
      const auto take = [&](uint64_t id) {
        own.push_back(row_number(bag.first_row + static_cast<int64_t>(mixed(id) % bag.hash_rows)));
      };
      wire::each_number<wire::kVarint>(entry, Field::kBagIds, take);
      if (entry.number(Field::kBagIds) == 0) {
        std::for_each(bag.defaults.begin(), bag.defaults.end(), take);
      }
      *ends++ = static_cast<int32_t>(own.size());
    }
    ids = own;
  }

  void read_events(const Sequence& sequence, const Entry& entry, const Spans& request,
                   Events& events, wire::UnknownNames& unknown) const {
    events.entry = &entry;
    wire::copy_integers(entry, Field::kSids, events.tokens);
    wire::copy_integers(entry, Field::kTimestamps, events.times);
    events.count = static_cast<int64_t>(events.tokens.size() / layout_.vocab_sizes.size());
    events.skipped = std::max<int64_t>(0, events.count - sequence.max_length);
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
        throw events.entry->fault(wrong, Field::kSids, token, size - 1, t);
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
    const int64_t skipped = events.skipped, kept = events.count - skipped;
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

  // Reads the prompt that a request sends, or else packs its history. `ids` is empty before.
  void read_prompt(const Entry& given, const Events& events, std::vector<int32_t>& ids) const {
    constexpr Field kField = Field::kTokenIds;
    const int64_t count = given.number(kField), most = prompt_->max_tokens;
    if (count == 0) return pack(events, ids);
    if (count > most) throw given.fault(Wrong::kLongPrompt, kField, count, most);
    if (events.count > 0) throw events.entry->fault(Wrong::kTwoPrompts, Field::kSids, events.count);
    wire::each_number<wire::kVarint>(given, kField, [&](uint64_t each) {
      const auto id = static_cast<int64_t>(each);
      if (!is_below(id, prompt_->num_tokens)) {
        throw given.fault(Wrong::kIdRange, kField, id, prompt_->num_tokens - 1);
      }
      ids.push_back(row_number(id));
    });
  }

  // Writes the tokens of a packed sequence.
  void pack(const Events& events, std::vector<int32_t>& tokens) const {
    const auto add = [&](const std::vector<int32_t>& more) {
      tokens.insert(tokens.end(), more.begin(), more.end());
    };
    tokens = layout_.prefix;
    const uint32_t* code = events.tokens.data() + events.skipped * layout_.vocab_sizes.size();
    for (int64_t event = events.skipped; event < events.count; ++event) {
      add(layout_.before);
      const int32_t* of_position = layout_.codes.data();
      for (const int64_t size : layout_.vocab_sizes) {
        tokens.push_back(of_position[*code++]);
        of_position += size;
      }
      add(layout_.after);
    }
    add(layout_.suffix);
  }

  EventLayout layout_;
  wire::Names names_;
  std::vector<Dense> dense_;
  int64_t numbers_ = 0;
  std::vector<Categorical> categorical_;
  std::vector<Bag> bags_;
  std::vector<Sequence> sequences_;
  std::optional<Prompt> prompt_;
};

Inputs& inputs_of(uint64_t handle) { return *reinterpret_cast<Inputs*>(handle); }

template <typename T>
std::vector<T> copied(const T* values, int64_t count) {
  return std::vector<T>(values, values + count);
}

}  // namespace

// The arguments are an EventLayout, and the threads that read a batch, the caller's among them.
// `tokens` has prefix, before, after, suffix and codes, and `counts` [5] the length of each. Add
// the inputs of each map in declared order.
GRACE_API int32_t grace_features_open(int64_t sid_length, const int64_t* vocab_sizes,
                                      int64_t places, int64_t ids, int32_t zeros,
                                      const int64_t* counts, const int32_t* tokens, int32_t threads,
                                      uint64_t* handle) {
  return grace::guarded([&] {
    require(sid_length > 0 && places >= 0 && ids > 0, "features_open: no such layout");
    const auto next = [&] {
      const int32_t* begin = tokens;
      return copied(begin, (tokens = begin + *counts++) - begin);
    };
    auto* const inputs = new Inputs({copied(vocab_sizes, sid_length), places, ids, zeros, next(),
                                     next(), next(), next(), next()},
                                    threads);
    *handle = reinterpret_cast<uint64_t>(inputs);
  });
}

// Adds an input to those of `map`, a row of wire_fields.h.
//   numbers  int64 [count], by map:
//              dense        none: `defaults` float32 [size] has one for each number of the input
//              categorical  cardinality, default id, first row
//              bags         rows, first row, default ids
//              sequences    most events, first place, first row of ages, first row of positions,
//                           first row of the tokens at each position of a SID; none if packed
//              tokens       size of the vocabulary, most tokens of a prompt; before its history
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

// Each message is a grace.v1.RetrieveRequest. The arrays are those of FeatureLookups, with the
// batch's `size` rows; numbers are as sent.
GRACE_API int32_t grace_features_read(uint64_t handle, const wire::Batch* batch, float* dense,
                                      int32_t* categorical, int32_t* bag_offsets, int64_t bag_room,
                                      int32_t* bag_rows, int32_t* events) {
  return grace::guarded([&] {
    require(bag_room <= std::numeric_limits<int32_t>::max(),
            "features_read: more ids in bags than int32 offsets can number");
    Inputs& inputs = inputs_of(handle);
    Rows rows{dense, categorical, bag_offsets, bag_room, bag_rows, events, {}};
    rows.bags.resize(static_cast<size_t>(batch->size));
    const auto read = [&](const Spans& request, int64_t row, wire::UnknownNames& names) {
      inputs.read(request, row, rows, names);
    };
    wire::read_batch(*batch, bit_of(Field::kFeatures), inputs.workers, read);
    inputs.join_bags(rows);
  });
}
