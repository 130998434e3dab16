// Softmax weights of logits to the base 2.
#pragma once

#include "simd.h"

constexpr double LOG2_E = 1.4426950408889634;

template <class T>
constexpr int taylor_degree = sizeof(T) == 4 ? 6 : 13;

// 2^x for x <= 0: 2^n 2^r, n the nearest integer, 2^r by its Taylor series. Relative error 2e-7 in
// float, 3e-16 in double; zero where it would be denormal, and for minus infinity; NaN stays.
template <class T>
inline Vector<T> softmax_weight(Vector<T> x) {
  using E = Exponent<T>;
  const Vector<T> least = all<T>(-E::bias);  // its 2^n has no bits, so is zero
  x = least > x ? least : x;
  constexpr T round = E::round + E::bias;
  const Vector<T> rounded = x + round;
  const Vector<T> r = x - (rounded - round);
  T coefficient[taylor_degree<T> + 1] = {1};
  for (int k = 1; k <= taylor_degree<T>; ++k)
    coefficient[k] = coefficient[k - 1] * T(0.6931471805599453) / k;
  Vector<T> series = all<T>(coefficient[taylor_degree<T>]);
#pragma GCC unroll 16
  for (int k = taylor_degree<T> - 1; k >= 0; --k) series = series * r + coefficient[k];
  // The lowest bits are n + bias, the exponent of 2^n.
  return series * (Vector<T>)((Integers<T>)rounded << E::mantissa);
}
