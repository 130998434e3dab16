// Rotation of pairs of features, as complex numbers: (a + bi) (cos + i sin).
#pragma once

#include "blocks.h"

struct Rotary {
  Strided factors;  // (B, H, T, D): cos and sin of pair 0, of pair 1, ..; halves: all cos, all sin
  int64_t halves;   // 1: pairs are features m and m + D / 2; 0: 2m and 2m + 1
};

// Lane l of the result is lane (l & keep) ^ flip of x.
template <class T, int keep, int flip, int... lane>
inline Vector<T> picked(Vector<T> x, std::integer_sequence<int, lane...>) {
#if defined(__clang__)
  return __builtin_shufflevector(x, x, ((lane & keep) ^ flip)...);
#else
  return __builtin_shuffle(x, Integers<T>{((lane & keep) ^ flip)...});
#endif
}

// A row of pairs 2m, 2m + 1. cos and sin: additional factors of those; sin has the signs - + - +,
// for the first and second of a pair.
template <class T>
inline void rotate_interleaved(const T* x, const T* factors, T cos, Vector<T> sin, long width,
                               T* out) {
  constexpr long N = Lanes<T>::count;
  constexpr auto lanes = std::make_integer_sequence<int, N>{};
  long d = 0;
  for (; d + N <= width; d += N) {
    const Vector<T> here = load(x + d), turn = load(factors + d);
    const Vector<T> other = picked<T, ~0, 1>(here, lanes);
    store(out + d, here * (picked<T, ~1, 0>(turn, lanes) * cos) +
                       other * (picked<T, ~1, 1>(turn, lanes) * sin));
  }
  for (; d < width; d += 2) {
    const T c = factors[d] * cos, s = factors[d + 1] * sin[1], first = x[d], second = x[d + 1];
    out[d] = first * c - second * s;
    out[d + 1] = second * c + first * s;
  }
}

// A row of pairs m, m + D / 2.
template <class T>
inline void rotate_halves(const T* x, const T* factors, T cos, T sin, long width, T* out) {
  constexpr long N = Lanes<T>::count;
  const long half = width / 2;
  long m = 0;
  for (; m + N <= half; m += N) {
    const Vector<T> c = load(factors + m) * cos, s = load(factors + half + m) * sin;
    const Vector<T> first = load(x + m), second = load(x + half + m);
    store(out + m, first * c - second * s);
    store(out + half + m, second * c + first * s);
  }
  for (; m < half; ++m) {
    const T c = factors[m] * cos, s = factors[half + m] * sin, first = x[m], second = x[half + m];
    out[m] = first * c - second * s;
    out[half + m] = second * c + first * s;
  }
}

// Rotates rows of a head, from token t on, and multiplies them by ``factor``; ``to`` may be
// ``from``. back: by the conjugate, as for gradients.
template <class T>
inline void rotate_rows(const Rotary& rotary, long b, long h, long t, bool back, T factor,
                        long rows, long width, const T* from, long from_row, T* to, long to_row) {
  const T* const factors = rotary.factors.row<T>(b, h, t);
  const T sin = back ? -factor : factor;
  Vector<T> sines;
  for (long lane = 0; lane < Lanes<T>::count; ++lane) sines[lane] = lane % 2 ? sin : -sin;
  for (long r = 0; r < rows; ++r)
    if (rotary.halves)
      rotate_halves<T>(from + r * from_row, factors + r * rotary.factors.token, factor, sin, width,
                       to + r * to_row);
    else
      rotate_interleaved<T>(from + r * from_row, factors + r * rotary.factors.token, factor, sines,
                            width, to + r * to_row);
}
