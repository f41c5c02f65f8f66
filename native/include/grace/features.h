// A request's features, grace.v1.Features, from the request's bytes to the row numbers that
// model/engine/feature_lookups.py describes.
#ifndef GRACE_FEATURES_H_
#define GRACE_FEATURES_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "grace/wire_batch.h"

namespace grace::features {

// In the order of their fields in Features.
enum class Kind { kDense, kCategorical, kBag, kSequence };

struct Place {
  Kind kind;
  size_t number;  // among those of its kind, in declared order
};

using Names = std::map<std::string, size_t, std::less<>>;

struct Dense {
  std::vector<float> defaults;  // as many as the input has numbers
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
  std::vector<int64_t> token_rows;  // where each SID position's begin
  Names side_names;
  std::vector<Side> side;
};

// A packed sequence has neither ages nor positions: its tokens follow each other, between prefix
// and suffix.
struct EventLayout {
  std::vector<int64_t> vocab_sizes;
  int64_t places;
  int64_t ids;    // of a place
  int32_t zeros;  // the row of what is not there
  bool packed;
  std::vector<int32_t> prefix;
  std::vector<int32_t> suffix;
};

// A batch's arrays, as in FeatureLookups, but for the numbers, which are as sent.
struct Rows {
  float* dense;
  int32_t* categorical;
  int32_t* bag_offsets;
  int32_t* bag_rows;
  int64_t bag_room;
  int32_t* events;
};

class Inputs {
 public:
  explicit Inputs(EventLayout layout) : layout_(std::move(layout)) {}

  void add(const std::string& name, Dense input);
  void add(const std::string& name, Categorical input);
  void add(const std::string& name, Bag input);
  void add(Sequence input);
  // To the last sequence.
  void add_side(const std::string& name, Side side);

  // Reads one request's features into its row; the rows before it must have been read. Throws
  // Fault, of the declared inputs first, kind by kind.
  void read(wire::Reader request, int64_t row, const Rows& rows, wire::UnknownNames& unknown) const;

 private:
  struct Given;
  struct Events;

  Given find(wire::Reader request) const;
  void read_dense(const Given& given, float* numbers) const;
  void read_categorical(const Given& given, int32_t* ids) const;
  void read_bags(const Given& given, int64_t row, const Rows& rows) const;
  void read_events(const Sequence& sequence, wire::Reader entry, Events& events) const;
  void check_events(const Sequence& sequence, const Events& events) const;
  void report_others(Given& given, wire::UnknownNames& unknown) const;
  void write_events(const Sequence& sequence, const Events& events, int32_t* places) const;
  void write_packed(const Sequence& sequence, const Events& events, int32_t* places) const;
  void declare(const std::string& name, Place place);

  EventLayout layout_;
  std::map<std::string, Place, std::less<>> names_;
  std::vector<Dense> dense_;
  int64_t numbers_ = 0;
  std::vector<Categorical> categorical_;
  std::vector<Bag> bags_;
  std::vector<Sequence> sequences_;
};

}  // namespace grace::features

#endif  // GRACE_FEATURES_H_
