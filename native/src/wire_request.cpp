// Checks the bytes of a grace.v1.RetrieveRequest from the network, and the server's limits. Later
// readers rely on this check.
#include "grace/wire_request.h"

#include <cmath>
#include <iterator>

#include "grace/abi.h"

namespace grace::wire {

namespace {

// The configuration's `limits`, and how many tokens an event has.
struct Limits {
  int64_t request_id_bytes;
  int64_t value_bytes;  // of names, too
  int64_t names;
  int64_t values_per_name;
  int64_t user_values;
  int64_t events;
  int64_t exclude_ads;
  int64_t max_ads;
  int64_t sid_length;
};

// The texts in a request's head: fields of RetrieveRequest, in the order of `Field`.
constexpr uint32_t kTexts[] = {kRequestId, kModel, kSidSpace, kProfile, kPriority};

// All fields but the user and the features, which later readers find in the message.
struct RequestHead {
  std::string_view texts[std::size(kTexts)];
  uint32_t max_ads = 0;
  bool include_sids = false;
  bool strict = false;
  int64_t exclude_ads = 0;  // the number of ids
};

struct AtMostEntry {
  std::string_view name;
  uint32_t most = 0;
  size_t parent = 0;
};

// What a request says of entities: whose ads to exclude, and how many ads of one to return.
struct EntityFields {
  LastOfEachName<IdsEntry> exclude;
  LastOfEachName<AtMostEntry> at_most;

  int64_t excluded_ids() const {
    int64_t ids = 0;
    for (const IdsEntry& entry : exclude.entries()) ids += entry.ids;
    return ids;
  }
};

constexpr int kKinds = 4;  // dense, categorical, bags, sequences: the fields of Features, from 1

// The facts that limits need about an entry of one of the request's maps.
struct Entry {
  std::string_view name;
  size_t parent = 0;  // a side input's sequence, by its `number`
  size_t number = 0;
  int64_t values = 0;  // the number of its values, ids or tokens
  int64_t times = 0;
  int64_t long_value = 0;  // bytes of the first value that is too long
  float not_finite = 0;    // the first number that is not
};

int64_t size_of(std::string_view text) { return static_cast<int64_t>(text.size()); }

AtMostEntry read_at_most(Reader entry) {
  AtMostEntry read;
  every_field(entry, [&](Reader& fields, uint32_t tag) {
    if (tag == tag_of(1, kBytes)) {
      read.name = fields.utf8();
    } else if (tag == tag_of(2, kVarint)) {
      read.most = static_cast<uint32_t>(fields.varint());
    } else {
      return false;
    }
    return true;
  });
  return read;
}

class RequestReader {
 public:
  explicit RequestReader(const Limits& limits) : limits_(limits) {}

  // Reads the whole message before any check of its contents. Throws Malformed or an unknown
  // field's Fault, whichever comes first in the bytes.
  void read(Reader message, RequestHead& head) {
    try {
      every_field(message,
                  [&](Reader& fields, uint32_t tag) { return read_field(fields, tag, head); });
    } catch (const UnknownField& found) {
      throw unknown_field(found.tag, within_);
    }
  }

  // Throws the first Fault in this order: texts, exclude_ads, exclude, at_most, user, features,
  // max_ads. Maps are checked in the order of their names.
  void check(const RequestHead& head) {
    for (size_t i = 0; i < std::size(kTexts); ++i) {
      const int64_t size = size_of(head.texts[i]);
      const int64_t most = i == 0 ? limits_.request_id_bytes : limits_.value_bytes;
      const Wrong wrong = i == 0 ? Wrong::kRequestIdBytes : Wrong::kTextBytes;
      const auto field = shifted(Field::kRequestId, static_cast<int64_t>(i));
      if (size > most) throw Fault{wrong, field, size, most};
    }
    if (head.exclude_ads > limits_.exclude_ads) {
      throw Fault{Wrong::kExcludedAds, Field::kExcludeAds, head.exclude_ads, limits_.exclude_ads};
    }
    check_entities(head.exclude_ads);
    check_user();
    check_features();
    if (head.max_ads > limits_.max_ads) {
      throw Fault{Wrong::kMaxAds, Field::kMaxAds, head.max_ads, limits_.max_ads};
    }
  }

  const EntityFields& entities() const { return entities_; }

 private:
  bool read_field(Reader& message, uint32_t tag, RequestHead& head) {
    for (size_t i = 0; i < std::size(kTexts); ++i) {
      if (tag != tag_of(kTexts[i], kBytes)) continue;
      head.texts[i] = message.utf8();
      return true;
    }
    switch (tag) {
      case tag_of(kUserEntry, kBytes):
        within_ = Field::kUser;
        read_user(message.bytes());
        within_ = Field::kWholeMessage;
        return true;
      case tag_of(kFeaturesMessage, kBytes):
        within_ = Field::kFeatures;
        read_features(message.bytes());
        within_ = Field::kWholeMessage;
        return true;
      case tag_of(kMaxAds, kVarint):
        head.max_ads = static_cast<uint32_t>(message.varint());
        return true;
      case tag_of(kIncludeSids, kVarint):
        head.include_sids = message.varint() != 0;
        return true;
      case tag_of(kStrict, kVarint):
        head.strict = message.varint() != 0;
        return true;
      case tag_of(kExcludeEntry, kBytes):
        within_ = Field::kExclude;
        entities_.exclude.put(read_ids_entry(message.bytes()));
        within_ = Field::kWholeMessage;
        return true;
      case tag_of(kAtMostEntry, kBytes):
        within_ = Field::kAtMost;
        entities_.at_most.put(read_at_most(message.bytes()));
        within_ = Field::kWholeMessage;
        return true;
      default:
        return count_integers(message, tag, kExcludeAds, head.exclude_ads);
    }
  }

  void read_user(Reader entry) {
    Entry user;
    const auto take_value = [&](Reader& values, uint32_t tag) {
      if (tag != tag_of(1, kBytes)) return false;
      const int64_t size = size_of(values.utf8());
      ++user.values;
      if (size > limits_.value_bytes && user.long_value == 0) user.long_value = size;
      return true;
    };
    read_entry(entry, user.name, [&](Reader part) { every_field(part, take_value); });
    user_.put(user);
  }

  void read_features(Reader features) {
    every_field(features, [&](Reader& fields, uint32_t tag) {
      const auto kind = static_cast<int>(tag >> 3) - 1;
      if ((tag & 7) != kBytes || kind >= kKinds) return false;
      read_input(fields.bytes(), kind);
      return true;
    });
  }

  void read_input(Reader entry, int kind) {
    Entry input;
    input.number = inputs_read_++;
    const auto take = [&](Reader part) {
      if (kind == 0) {
        read_numbers(part, input);
      } else if (kind == 3) {
        read_events(part, input);
      } else {
        every_field(part, [&](Reader& ids, uint32_t tag) {
          return count_integers(ids, tag, 1, input.values);
        });
      }
    };
    read_entry(entry, input.name, take);
    inputs_[kind].put(input);
  }

  void read_numbers(Reader part, Entry& input) {
    const auto take = [&](float number) {
      ++input.values;
      if (!std::isfinite(number) && input.not_finite == 0) input.not_finite = number;
    };
    every_field(part,
                [&](Reader& numbers, uint32_t tag) { return take_floats(numbers, tag, 1, take); });
  }

  void read_events(Reader part, Entry& sequence) {
    every_field(part, [&](Reader& events, uint32_t tag) {
      if (count_integers(events, tag, 1, sequence.values)) return true;
      if (count_integers(events, tag, 2, sequence.times)) return true;
      if (tag != tag_of(3, kBytes)) return false;
      Entry side;
      side.parent = sequence.number;
      const auto take_id = [&](Reader& ids, uint32_t id_tag) {
        return count_integers(ids, id_tag, 1, side.values);
      };
      read_entry(events.bytes(), side.name, [&](Reader ids) { every_field(ids, take_id); });
      sides_.put(side);
      return true;
    });
  }

  void check_name(Field map, std::string_view name, std::string_view of = {}) const {
    if (size_of(name) > limits_.value_bytes) {
      throw Fault{Wrong::kNameBytes, map, size_of(name), limits_.value_bytes, of};
    }
  }

  void check_names(Field map, size_t size) const {
    const auto names = static_cast<int64_t>(size);
    if (names > limits_.names) throw Fault{Wrong::kNames, map, names, limits_.names};
  }

  void check_entities(int64_t exclude_ads) {
    check_names(Field::kExclude, entities_.exclude.size());
    for (const IdsEntry& entry : entities_.exclude.sorted()) {
      check_name(Field::kExclude, entry.name);
    }
    const int64_t ids = exclude_ads + entities_.excluded_ids();
    if (ids > limits_.exclude_ads) {
      throw Fault{Wrong::kExcludedIds, Field::kExclude, ids, limits_.exclude_ads};
    }
    check_names(Field::kAtMost, entities_.at_most.size());
    for (const AtMostEntry& entry : entities_.at_most.sorted()) {
      check_name(Field::kAtMost, entry.name);
    }
  }

  void check_user() {
    check_names(Field::kUser, user_.size());
    int64_t together = 0;
    for (const Entry& entry : user_.sorted()) {
      check_name(Field::kUser, entry.name);
      if (entry.values > limits_.values_per_name) {
        throw Fault{Wrong::kValues, Field::kUserValues, entry.values, limits_.values_per_name,
                    entry.name};
      }
      together += entry.values;
    }
    if (together > limits_.user_values) {
      throw Fault{Wrong::kUserValues, Field::kUser, together, limits_.user_values};
    }
    for (const Entry& entry : user_.entries()) {
      if (entry.long_value > 0) {
        throw Fault{Wrong::kValueBytes, Field::kUserValues, entry.long_value, limits_.value_bytes,
                    entry.name};
      }
    }
  }

  void check_features() {
    size_t names = 0;
    for (const auto& inputs : inputs_) names += inputs.size();
    check_names(Field::kFeatures, names);
    std::vector<bool> counts(inputs_read_);  // which sequences are the last of their name
    for (const Entry& sequence : inputs_[3].entries()) counts[sequence.number] = true;
    const auto counting = [&](const Entry& side) { return counts[side.parent]; };
    const std::vector<Entry>& sides = sides_.entries();
    names += static_cast<size_t>(std::count_if(sides.begin(), sides.end(), counting));
    check_names(Field::kFeatures, names);
    sides_.sorted();
    for (int kind = 0; kind < kKinds; ++kind) {
      for (const Entry& input : inputs_[kind].sorted()) {
        check_name(shifted(Field::kDense, kind), input.name);
        if (kind == 3) {
          check_sequence(input);
          continue;
        }
        const Field field = shifted(Field::kDenseValues, kind);
        if (input.values > limits_.values_per_name) {
          throw Fault{kind == 0 ? Wrong::kValues : Wrong::kIds, field, input.values,
                      limits_.values_per_name, input.name};
        }
        if (input.not_finite != 0) {
          throw Fault{Wrong::kNotFinite, field, code_of(input.not_finite), 0, input.name};
        }
      }
    }
  }

  void check_sequence(const Entry& sequence) {
    const auto check = [&](Field field, int64_t events, std::string_view side) {
      if (events > limits_.events) {
        throw Fault{Wrong::kEvents, field, events, limits_.events, sequence.name, side};
      }
    };
    check(Field::kSids, (sequence.values + limits_.sid_length - 1) / limits_.sid_length, {});
    check(Field::kTimestamps, sequence.times, {});
    const std::vector<Entry>& sides = sides_.entries();
    auto side = std::partition_point(sides.begin(), sides.end(), [&](const Entry& each) {
      return each.parent < sequence.number;
    });
    for (; side != sides.end() && side->parent == sequence.number; ++side) {
      check_name(Field::kSides, side->name, sequence.name);
      check(Field::kSideIds, side->values, side->name);
    }
  }

  const Limits& limits_;
  EntityFields entities_;
  Field within_ = Field::kWholeMessage;  // the part that is being read
  LastOfEachName<Entry> user_;
  LastOfEachName<Entry> inputs_[kKinds];
  LastOfEachName<Entry> sides_;
  size_t inputs_read_ = 0;
};

// Reads the entities of a request that was checked.
EntityFields read_entities(Reader message) {
  EntityFields read;
  each_field(message, [&](Reader& fields, uint32_t tag) {
    if (tag == tag_of(kExcludeEntry, kBytes)) {
      read.exclude.put(read_ids_entry(fields.bytes()));
    } else if (tag == tag_of(kAtMostEntry, kBytes)) {
      read.at_most.put(read_at_most(fields.bytes()));
    } else {
      return false;
    }
    return true;
  });
  return read;
}

}  // namespace

// Checks a request's bytes and reads all of it but the user, the features and lists of ids.
//   limits  int64 [9]    those of Limits
//   head    int64 [17]   begin and size of request_id, model, sid_space, profile and priority;
//                        max_ads, include_sids, strict, the number of exclude_ads; the numbers of
//                        names in exclude, of their ids, and of names in at_most
//   fault   int64 [9]    as write_fault writes it
GRACE_API int32_t grace_request_read(const char* message, int64_t size, const int64_t* limits,
                                     int64_t* head, int64_t* fault) {
  return guarded([&] {
    RequestHead read;
    int64_t entities[3] = {0, 0, 0};
    Fault found{Wrong::kNothing};
    const Limits most{limits[0], limits[1], limits[2], limits[3], limits[4],
                      limits[5], limits[6], limits[7], limits[8]};
    try {
      RequestReader reader(most);
      reader.read(Reader(message, size), read);
      reader.check(read);
      entities[0] = static_cast<int64_t>(reader.entities().exclude.size());
      entities[1] = reader.entities().excluded_ids();
      entities[2] = static_cast<int64_t>(reader.entities().at_most.size());
    } catch (const Fault& fault_found) {
      found = fault_found;
    } catch (const Malformed&) {
      read = {};
      found.wrong = Wrong::kMalformed;
    }
    write_fault(found, message, fault);
    for (const std::string_view text : read.texts) {
      *head++ = text.empty() ? 0 : text.data() - message;
      *head++ = size_of(text);
    }
    *head++ = read.max_ads;
    *head++ = read.include_sids ? 1 : 0;
    *head++ = read.strict ? 1 : 0;
    *head++ = read.exclude_ads;
    for (const int64_t count : entities) *head++ = count;
  });
}

// The ads to exclude, of a request that was read: as many as its head says.
GRACE_API int32_t grace_request_excluded(const char* message, int64_t size, int64_t count,
                                         int64_t* ads) {
  return guarded([&] {
    int64_t taken = 0;
    const auto take = [&](uint64_t ad) {
      require(taken < count, "request_excluded: more ads than the request's head says");
      ads[taken++] = static_cast<int64_t>(ad);
    };
    each_field(Reader(message, size), [&](Reader& fields, uint32_t tag) {
      return take_integers(fields, tag, kExcludeAds, take);
    });
  });
}

// The entities of a request that was read, by name: as many as its head says.
//   exclude  int64 [names, 3]   begin and size of the name; the number of its ids
//   ids      int64 [ids]        of one name after the other
//   at_most  int64 [names, 3]   begin and size of the name; its limit
GRACE_API int32_t grace_request_entities(const char* message, int64_t size, int64_t exclude_names,
                                         int64_t ids_of_all, int64_t at_most_names,
                                         int64_t* exclude, int64_t* ids, int64_t* at_most) {
  return guarded([&] {
    EntityFields read = read_entities(Reader(message, size));
    require(static_cast<int64_t>(read.exclude.size()) == exclude_names &&
                read.excluded_ids() == ids_of_all &&
                static_cast<int64_t>(read.at_most.size()) == at_most_names,
            "request_entities: other numbers than the request's head says");
    copy_ids(read.exclude, message, exclude, ids);
    for (const AtMostEntry& entry : read.at_most.sorted()) {
      write_named(entry.name, entry.most, message, at_most);
    }
  });
}

}  // namespace grace::wire
