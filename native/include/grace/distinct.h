#pragma once

#include <algorithm>
#include <vector>

namespace grace {

// Sorts, and keeps each value once.
template <typename T>
void keep_distinct(std::vector<T>& values) {
  std::sort(values.begin(), values.end());
  values.erase(std::unique(values.begin(), values.end()), values.end());
}

}  // namespace grace
