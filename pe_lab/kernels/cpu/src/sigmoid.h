// Gates whose logits are to the base 2.
#pragma once

#include "softmax.h"

// How far below zero a gate's logit still counts: 2^-60 is nothing beside 1.
template <class T>
constexpr int shut = sizeof(T) == 4 ? 60 : 500;

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
  // The lowest bits hold n + bias, the exponent of 2^n. Far outside, these integers compare as the
  // numbers do.
  const Integers<T> least = (Integers<T>)all<T>(E::round);
  const Integers<T> most = least + (E::bias + shut<T>);
  Integers<T> bits = (Integers<T>)rounded;
  bits = bits > least ? bits : least;
  bits = bits < most ? bits : most;
  return 1 / (1 + series * (Vector<T>)(bits << E::mantissa));
}
