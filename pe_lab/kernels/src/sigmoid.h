// The sigmoid of logits to the base 2.
#pragma once

#include "softmax.h"

// Logits are clamped from below to minus this: 2^-60 is negligible beside 1.
template <class T>
constexpr int closed = sizeof(T) == 4 ? 60 : 500;

// 1 / (1 + 2^-x); NaN stays, infinities become NaN. Relative error 3e-7 in float, 4e-16 in double.
//
// 2^-x = 2^n 2^-r, n the nearest integer, 2^-r by its Taylor series.
template <class T>
inline Vector<T> sigmoid(Vector<T> x) {
  using E = Exponent<T>;
  constexpr T round = E::round + E::bias;
  const Vector<T> rounded = round - x;
  const Vector<T> r = x + (rounded - round);
  T coefficient[taylor_degree<T> + 1] = {1};
  for (int k = 1; k <= taylor_degree<T>; ++k)
    coefficient[k] = coefficient[k - 1] * T(-0.6931471805599453) / k;
  Vector<T> series = all<T>(coefficient[taylor_degree<T>]);
#pragma GCC unroll 16
  for (int k = taylor_degree<T> - 1; k >= 0; --k) series = series * r + coefficient[k];
  // The lowest bits hold n + bias, the exponent of 2^n. Out of range, these integers are ordered as
  // the numbers are.
  const Integers<T> least = (Integers<T>)all<T>(E::round);
  const Integers<T> most = least + (E::bias + closed<T>);
  Integers<T> bits = (Integers<T>)rounded;
  bits = bits > least ? bits : least;
  bits = bits < most ? bits : most;
  return 1 / (1 + series * (Vector<T>)(bits << E::mantissa));
}
