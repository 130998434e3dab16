// Dropout with the mask of pe_lab/core/dropout.py, bit for bit.
#pragma once

#include "simd.h"

struct Dropout {
  uint32_t low, high;  // the halves of the key
  uint32_t threshold;  // round(p 2^24); 0: nothing is dropped
  double scale;        // 1 / (1 - p)

  // Comparing whole hashes saves the shift by 8. (Where p rounds to 1, one element in 2^32 is
  // kept.)
  uint32_t first_kept() const { return threshold < 1u << 24 ? threshold << 8 : UINT32_MAX; }
};

// A hash of a 32-bit number, or of a vector of them.
template <class U>
inline U mix(U x) {
  x ^= x >> 16;
  x *= 0x7feb352du;
  x ^= x >> 15;
  x *= 0x846ca68bu;
  x ^= x >> 16;
  return x;
}

// The hash of row numbers; those of attention weights are (b H + h) S + i.
template <class U>
inline U hashed_rows(const Dropout& drop, U rows) {
  return mix(mix(rows + drop.low) + drop.high);
}

// All ones in the lanes that are kept. ``columns``: one number, or one for each lane.
template <class T, class Columns>
inline Integers<T> kept(const Dropout& drop, Hashes<T> hashed, Columns columns) {
  const Hashes<T> bits = mix<Hashes<T>>(hashed + columns * 0x9e3779b9u);
  return __builtin_convertvector(bits >= drop.first_kept(), Integers<T>);
}

inline bool kept(const Dropout& drop, uint32_t hashed_row, uint32_t column) {
  return mix(hashed_row + column * 0x9e3779b9u) >= drop.first_kept();
}
