// What every fuzz driver needs: a source of randomness, a check that names its line, and a main
// that repeats one case for --seconds from --seed.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>

extern "C" const char* grace_last_error();

#define EXPECT(condition)                                                      \
  do {                                                                         \
    if (!(condition)) {                                                        \
      std::fprintf(stderr, "%s:%d: %s (%s)\n", __FILE__, __LINE__, #condition, \
                   grace_last_error());                                        \
      std::exit(1);                                                            \
    }                                                                          \
  } while (0)

namespace fuzz {

using Random = std::mt19937_64;

inline int64_t below(Random& random, int64_t bound) {
  return static_cast<int64_t>(random() % bound);
}

inline bool chance(Random& random, int64_t percent) { return below(random, 100) < percent; }

template <typename RunOnce>
int run(const char* name, int argc, char** argv, RunOnce&& run_once) {
  double seconds = 20;
  uint64_t seed = 7;
  for (int i = 1; i + 1 < argc; i += 2) {
    if (std::strcmp(argv[i], "--seconds") == 0) seconds = std::atof(argv[i + 1]);
    if (std::strcmp(argv[i], "--seed") == 0) seed = std::strtoull(argv[i + 1], nullptr, 10);
  }
  Random random(seed);
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  int64_t cases = 0;
  do {
    run_once(random);
    ++cases;
  } while (std::chrono::steady_clock::now() < end);
  std::printf("%s: %lld cases, seed %llu\n", name, static_cast<long long>(cases),
              static_cast<unsigned long long>(seed));
  return 0;
}

}  // namespace fuzz
