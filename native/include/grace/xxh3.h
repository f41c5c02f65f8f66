// XXH3, the hash of Bloom bits: its formulas for every length of a text.
#pragma once

#include <cstdint>
#include <cstring>
#include <string_view>

namespace grace {

namespace xxh3 {

constexpr uint64_t kPrime1 = 0x9E3779B185EBCA87u;
constexpr uint64_t kPrime2 = 0xC2B2AE3D27D4EB4Fu;
constexpr uint64_t kPrime3 = 0x165667B19E3779F9u;
constexpr uint64_t kPrime4 = 0x85EBCA77C2B2AE63u;
constexpr uint64_t kPrime5 = 0x27D4EB2F165667C5u;
constexpr uint64_t kShort1 = 0x9E3779B1u;
constexpr uint64_t kShort2 = 0x85EBCA77u;
constexpr uint64_t kShort3 = 0xC2B2AE3Du;
constexpr uint64_t kMix1 = 0x165667919E3779F9u;
constexpr uint64_t kMix2 = 0x9FB21C651E98DF25u;

// The default secret.
constexpr uint64_t kSecretSize = 192;
constexpr uint8_t kSecret[kSecretSize] = {
    0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c,
    0xde, 0xd4, 0x6d, 0xe9, 0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f,
    0xcb, 0x79, 0xe6, 0x4e, 0xcc, 0xc0, 0xe5, 0x78, 0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21,
    0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43, 0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6, 0x81, 0x3a, 0x26, 0x4c,
    0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb, 0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3,
    0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19, 0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8,
    0xa8, 0xfa, 0x76, 0x3f, 0xe3, 0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7, 0xc7, 0x0b, 0x4f, 0x1d,
    0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31, 0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78, 0x73, 0x64,
    0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff, 0xfa, 0x13, 0x63, 0xeb,
    0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49, 0xd3, 0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e,
    0x2b, 0x16, 0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc, 0x8f, 0xf8, 0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce,
    0x45, 0xcb, 0x3a, 0x8f, 0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b, 0x40, 0x7e};

// Bytes of texts and of the secret are little-endian numbers, as are those of the machines we run
// on.
inline uint32_t read32(const uint8_t* at) {
  uint32_t value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

inline uint64_t read64(const uint8_t* at) {
  uint64_t value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

inline uint64_t rotated(uint64_t value, int bits) { return value << bits | value >> (64 - bits); }

inline uint64_t folded_product(uint64_t a, uint64_t b) {
  const unsigned __int128 product = static_cast<unsigned __int128>(a) * b;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

inline uint64_t avalanche(uint64_t hash) {
  hash = (hash ^ (hash >> 37)) * kMix1;
  return hash ^ (hash >> 32);
}

inline uint64_t avalanche_of_few(uint64_t hash) {
  hash = (hash ^ (hash >> 33)) * kPrime2;
  hash = (hash ^ (hash >> 29)) * kPrime3;
  return hash ^ (hash >> 32);
}

inline uint64_t mixed16(const uint8_t* text, const uint8_t* secret, uint64_t seed) {
  return folded_product(read64(text) ^ (read64(secret) + seed),
                        read64(text + 8) ^ (read64(secret + 8) - seed));
}

inline uint64_t of_0_to_3(const uint8_t* text, uint64_t size, uint64_t seed) {
  if (size == 0) return avalanche_of_few(seed ^ read64(kSecret + 56) ^ read64(kSecret + 64));
  const uint32_t together = uint32_t{text[0]} << 16 | uint32_t{text[size >> 1]} << 24 |
                            uint32_t{text[size - 1]} | static_cast<uint32_t>(size) << 8;
  return avalanche_of_few(together ^ ((read32(kSecret) ^ read32(kSecret + 4)) + seed));
}

inline uint64_t of_4_to_8(const uint8_t* text, uint64_t size, uint64_t seed) {
  seed ^= uint64_t{__builtin_bswap32(static_cast<uint32_t>(seed))} << 32;
  const uint64_t flip = (read64(kSecret + 8) ^ read64(kSecret + 16)) - seed;
  uint64_t hash = flip ^ (read32(text + size - 4) + (uint64_t{read32(text)} << 32));
  hash = (hash ^ rotated(hash, 49) ^ rotated(hash, 24)) * kMix2;
  hash = (hash ^ ((hash >> 35) + size)) * kMix2;
  return hash ^ (hash >> 28);
}

inline uint64_t of_9_to_16(const uint8_t* text, uint64_t size, uint64_t seed) {
  const uint64_t low = read64(text) ^ ((read64(kSecret + 24) ^ read64(kSecret + 32)) + seed);
  const uint64_t high =
      read64(text + size - 8) ^ ((read64(kSecret + 40) ^ read64(kSecret + 48)) - seed);
  return avalanche(size + __builtin_bswap64(low) + high + folded_product(low, high));
}

// From both ends to the middle.
inline uint64_t of_17_to_128(const uint8_t* text, uint64_t size, uint64_t seed) {
  uint64_t sum = size * kPrime1;
  for (uint64_t pair = (size - 1) / 32 + 1; pair-- > 0;) {
    sum += mixed16(text + 16 * pair, kSecret + 32 * pair, seed);
    sum += mixed16(text + size - 16 * (pair + 1), kSecret + 32 * pair + 16, seed);
  }
  return avalanche(sum);
}

inline uint64_t of_129_to_240(const uint8_t* text, uint64_t size, uint64_t seed) {
  uint64_t sum = size * kPrime1;
  for (uint64_t i = 0; i < 8; ++i) sum += mixed16(text + 16 * i, kSecret + 16 * i, seed);
  sum = avalanche(sum) + mixed16(text + size - 16, kSecret + 136 - 17, seed);
  for (uint64_t i = 8; i < size / 16; ++i) {
    sum += mixed16(text + 16 * i, kSecret + 16 * (i - 8) + 3, seed);
  }
  return avalanche(sum);
}

// Eight sums over stripes of 64 bytes, scrambled after every block of 16 stripes.
struct Sums {
  uint64_t sums[8] = {kShort3, kPrime1, kPrime2, kPrime3, kPrime4, kShort2, kPrime5, kShort1};

  void add(const uint8_t* stripe, const uint8_t* secret) {
    for (int i = 0; i < 8; ++i) {
      const uint64_t value = read64(stripe + 8 * i);
      const uint64_t key = value ^ read64(secret + 8 * i);
      sums[i ^ 1] += value;
      sums[i] += (key & 0xFFFFFFFFu) * (key >> 32);
    }
  }

  void scramble(const uint8_t* secret) {
    for (int i = 0; i < 8; ++i) {
      sums[i] = (sums[i] ^ (sums[i] >> 47) ^ read64(secret + 8 * i)) * kShort1;
    }
  }
};

inline uint64_t of_241_and_more(const uint8_t* text, uint64_t size, uint64_t seed) {
  constexpr uint64_t kStripe = 64;
  constexpr uint64_t kBlockStripes = (kSecretSize - kStripe) / 8;
  uint8_t secret[kSecretSize];
  for (uint64_t i = 0; i < kSecretSize; i += 16) {
    const uint64_t seeded[] = {read64(kSecret + i) + seed, read64(kSecret + i + 8) - seed};
    std::memcpy(secret + i, seeded, sizeof seeded);
  }
  Sums all;
  const uint64_t stripes = (size - 1) / kStripe;
  for (uint64_t i = 0; i < stripes; ++i) {
    all.add(text + kStripe * i, secret + 8 * (i % kBlockStripes));
    if (i % kBlockStripes == kBlockStripes - 1) all.scramble(secret + kSecretSize - kStripe);
  }
  all.add(text + size - kStripe, secret + kSecretSize - kStripe - 7);
  uint64_t hash = size * kPrime1;
  for (int i = 0; i < 8; i += 2) {
    hash += folded_product(all.sums[i] ^ read64(secret + 11 + 8 * i),
                           all.sums[i + 1] ^ read64(secret + 19 + 8 * i));
  }
  return avalanche(hash);
}

}  // namespace xxh3

// XXH3_64bits_withSeed.
inline uint64_t hash_text(std::string_view text, uint64_t seed) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(text.data());
  if (text.size() <= 3) return xxh3::of_0_to_3(bytes, text.size(), seed);
  if (text.size() <= 8) return xxh3::of_4_to_8(bytes, text.size(), seed);
  if (text.size() <= 16) return xxh3::of_9_to_16(bytes, text.size(), seed);
  if (text.size() <= 128) return xxh3::of_17_to_128(bytes, text.size(), seed);
  if (text.size() <= 240) return xxh3::of_129_to_240(bytes, text.size(), seed);
  return xxh3::of_241_and_more(bytes, text.size(), seed);
}

}  // namespace grace
