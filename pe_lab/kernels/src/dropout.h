// Dropout whose mask is a hash of a key, a row and a column, so that the backward pass computes it
// again instead of keeping it:
//   row_r   = mix(mix(r + low) + high)
//   kept_rc = mix(row_r + c * 0x9e3779b9) >> 8 >= round(p * 2^24)
// ``mix`` is Wellons' "lowbias32".
#pragma once

#include "simd.h"

struct Dropout {
  uint32_t low, high;  // the halves of the key
  uint32_t threshold;  // round(p 2^24); 0: nothing is dropped
  double scale;        // 1 / (1 - p)

  // Comparing whole hashes saves the shift by 8.
  uint32_t first_kept() const { return threshold << 8; }
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
